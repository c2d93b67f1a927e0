"""The grading workers: hostile answers end, budgets hold, dead workers are replaced, none outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import joblib
import psutil
import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.maths_answers import UngradableGoldError
from grpo_replications.shared.grading.pool import GradingPool, shared_pool

ENDLESS = r"\binom{10^{9}}{5\cdot 10^8}"  # a computation that the text limits do not catch: only a limit ends it
ROOT = Path(__file__).parents[3]


@pytest.fixture
def pool() -> Iterator[GradingPool]:
    pool = GradingPool(seconds=1.0)
    yield pool
    pool.close()


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "loky" in " ".join(child.cmdline())
            and "resource_tracker" not in " ".join(child.cmdline())]  # fmt: skip


def test_hostile_answers_end_and_the_next_is_graded(pool: GradingPool) -> None:
    for hostile in (ENDLESS, r"(10^{9999})^{9999}", "(" * 900 + "1" + ")" * 900):
        assert pool.grade(hostile, "7") is False
        assert pool.grade("7", "7") is True
    assert pool.timeouts >= 1


def test_a_gold_that_runs_out_of_time_is_refused(pool: GradingPool) -> None:
    with pytest.raises(UngradableGoldError, match="too long"):
        pool.check_gold(ENDLESS)
    with pytest.raises(UngradableGoldError, match="too long"):
        pool.grade("7", ENDLESS)
    with pytest.raises(UngradableGoldError, match="cannot be read"):
        pool.grade("7", r"\frac{1}{")


def test_a_batch_spares_the_short_answers_and_what_time_does_not_reach_is_wrong(pool: GradingPool) -> None:
    hostile = [(f"{ENDLESS}+{k}", "7") for k in range(6)]
    assert pool.grade_batch([*hostile, ("7", "7"), ("7", "7")], seconds=3.0) == [False] * 6 + [True, True]
    assert pool.timeouts < len(hostile)
    assert pool.grade_batch([("7", "7")], seconds=0.0) == [False]
    assert pool.grade_batch([], seconds=1.0) == []


def test_a_killed_worker_is_replaced(pool: GradingPool) -> None:
    assert pool.grade("7", "7")
    for worker in workers():
        worker.kill()
    assert pool.grade("8", "8")
    pool.close()
    assert pool.grade("9", "9")


def test_several_workers_give_the_verdicts_of_one(pool: GradingPool) -> None:
    pairs = [(str(k), str(k % 7)) for k in range(40)]
    several = GradingPool(workers=2)
    try:
        assert several.grade_batch(pairs, 60.0) == pool.grade_batch(pairs, 60.0) == [k < 7 for k in range(40)]
    finally:
        several.close()


def test_works_from_threads() -> None:
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(shared_pool().grade("7", "7"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def _grade(k: int) -> bool:
    return shared_pool().grade(str(k), "1")


def test_works_within_joblib_workers() -> None:
    assert joblib.Parallel(n_jobs=2)(joblib.delayed(_grade)(k) for k in range(3)) == [False, True, False]


def _grade_and_send(connection: object) -> None:
    connection.send(shared_pool().grade("7", "7"))  # type: ignore[attr-defined]
    shared_pool().close()


def test_works_in_a_forked_child_and_leaves_the_parents_worker_alone() -> None:
    assert shared_pool().grade("5", "5")
    before = {worker.pid for worker in workers()}
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_grade_and_send, args=(there,))
    child.start()
    assert here.poll(60) and here.recv()
    child.join(30)
    assert before <= {worker.pid for worker in workers()}
    assert shared_pool().grade("6", "6")


def _message_of_a_daemon(connection: object) -> None:
    try:
        GradingPool().grade("7", "7")
    except ReplicationError as error:
        connection.send(str(error))  # type: ignore[attr-defined]


def test_a_daemonic_process_is_told_what_to_do() -> None:
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_message_of_a_daemon, args=(there,), daemon=True)
    child.start()
    assert here.poll(60) and "joblib's default backend" in here.recv()
    child.join(30)


def test_a_killed_parent_leaves_no_worker_and_no_main_module_is_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"  # without a guard around its main part, as training scripts are
    script.write_text(
        "from shared.grading.pool import GradingPool\n"
        "print('once', flush=True)\n"
        "pool = GradingPool(seconds=300.0)\n"
        f"pool.grade('1', '1')\nprint('ready', flush=True)\npool.grade({ENDLESS!r}, '7')\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert parent.stdout is not None
    assert [parent.stdout.readline().strip() for _ in range(2)] == ["once", "ready"]
    children = psutil.Process(parent.pid).children(recursive=True)
    assert children
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_no_alarm_is_set_and_none_is_disarmed() -> None:
    import signal

    signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        assert shared_pool().grade(r"\frac{2}{4}", "0.5")
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
