"""`replicate estimate`: the real command on the real profiles, what it refuses, and what it reads from the results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_replications.replications import checkpoint_sizes, estimate
from grpo_replications.replications.__main__ import main
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.planning.gpus import gpu_called

ROOT = Path(__file__).parents[2]
PAPERS = ("lambda_grpo", "grpo_sg", "sigma_identity")


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    monkeypatch.setenv("COLUMNS", "200")
    code = main(["estimate", *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize("paper", PAPERS)
def test_the_paper_profiles_fit_an_h100_and_say_what_they_assume(
    paper: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out = run(capsys, monkeypatch, paper, "--gpu", "h100")
    assert code == 0 and "GPU-hours" in out and "GB of checkpoints while the largest job runs" in out
    assert "model FLOPs utilisation" in out and "float32: 4 bytes a parameter" in out


def test_the_manual_has_the_checkpoint_sizes_that_estimate_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    papers = [Paper.load(ROOT / "replications" / name) for name in sorted(PAPERS)]
    page = checkpoint_sizes.PAGE.read_text(encoding="utf-8")
    assert page == checkpoint_sizes.with_table(page, papers), "python -m replications.checkpoint_sizes writes it anew"
    sizes = checkpoint_sizes.sizes(papers[1], "paper")
    out = run(capsys, monkeypatch, "lambda-grpo", "--gpu", "h100")[1]
    (line,) = [line for line in out.splitlines() if "table2" in line and "Llama" in line]
    assert f"{sizes['table2', 'meta-llama/Llama-3.2-1B-Instruct']:.1f} GB" in line


def test_what_cannot_fit_is_refused_with_what_would(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out = run(capsys, monkeypatch, "grpo-sg", "--profile", "authors-code", "--gpu", "h100")
    assert code == 1 and "does not fit: training-kk with Qwen/Qwen2.5-3B-Instruct on h100: it needs" in out
    assert "on h200" in out and "on h100 with lora_rank = 64" in out
    code, out = run(capsys, monkeypatch, "grpo-sg", "--profile", "authors-code", "--gpu", "h200")
    assert code == 0 and "does not fit" not in out
    code, out = run(capsys, monkeypatch, "lambda-grpo", "--gpu", "x9")
    assert code == 2 and "There is no GPU 'x9' in the list" in out


def test_all_parameters_of_7b_fit_on_no_gpu() -> None:
    paper = Paper.load(ROOT / "replications" / "grpo_sg")
    plan = paper.profile("authors-code").plans["training-kk"]
    settings = paper.experiment("training-kk").parse(plan.cells[0], "here")
    work = estimate.workload(settings.changed(model="Qwen/Qwen2.5-7B-Instruct-1M"))
    for name in ("h100", "b200"):
        gpu = gpu_called(name)
        assert "GB (Adam" in estimate._problem(estimate.cost.memory(work, gpu, estimate.cost.Assumptions()), gpu)


def test_work_follows_the_settings() -> None:
    paper = Paper.load(ROOT / "replications" / "grpo_sg")
    cells = {
        (c.label, c.model): c for c in estimate.cells_of(paper, paper.profile("paper").plans["training-kk"], "paper")
    }
    works = {label.partition(";")[0]: cell.work for (label, _), cell in cells.items()}
    grpo, lopti = works["method=grpo"], works["method=lopti"]
    assert (grpo.steps, lopti.steps) == (700, 1400) and grpo.sampled == lopti.sampled == 350 * 512
    assert (grpo.micro_batch, grpo.vllm_share, grpo.saves) == (1, 0.3, True)
    table2 = Paper.load(ROOT / "replications" / "lambda_grpo")
    works = [c.work for c in estimate.cells_of(table2, table2.profile("paper").plans["table2"], "paper")]
    assert [work.steps for work in works[:2]] == [0, 1000] and works[3].reference and not works[1].reference
    assert [len(work.evaluations) for work in works[:2]] == [1, 2]
    assert works[1].evaluations[0].batches == 41 * 2


def test_a_cpu_profile_is_estimated_from_what_its_jobs_took(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = {"jobs_finished": 2, "job_seconds": 60.0, "machines": ["a 9"], "peak_memory_gib": 1.5}
    (tmp_path / "lambda_grpo" / "full").mkdir(parents=True)
    record = {"experiments": {"theorem": entry}}
    (tmp_path / "lambda_grpo" / "full" / "record.json").write_text(json.dumps(record))
    monkeypatch.setenv("REPLICATE_RESULTS", str(tmp_path))
    code, out = run(capsys, monkeypatch, "lambda-grpo", "--profile", "full", "--only", "theorem")
    assert code == 0 and "In all 4 CPU-minutes, 4 minutes one experiment after another" in out and "a 9" in out
    code, out = run(capsys, monkeypatch, "lambda-grpo", "--profile", "quick")
    assert code == 0 and "a 9, profile full" in out and "not known: table1-tabular" in out


def test_a_run_prints_the_estimate_and_stops_where_the_gpu_here_is_too_small(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REPLICATE_RESULTS", str(tmp_path))
    monkeypatch.setattr(estimate, "gpu_here", lambda: gpu_called("l40s"))
    code = main(["run", "grpo-sg", "--profile", "authors-code"])
    captured = capsys.readouterr()
    assert code == 2 and "GPU-hours" in captured.out and "Nothing was started" in captured.err
    assert not list(tmp_path.iterdir())
    estimate.before_run(Paper.load(ROOT / "replications" / "grpo_sg"), "smoke", tmp_path, None, None, None)
    with pytest.raises(ReplicationError):
        estimate.gpu_called("")
