"""Jobs on the machines of a Ray cluster, each with the GPUs, cores and memory that its settings ask for.

The nodes need the same packages as this machine and nothing else: the source goes to them through Ray, and what a job
writes comes back through Ray and is written here, when that job ends.  Only a job that saves checkpoints (`save_every`)
runs in the directory of results itself, which its node must then see.  A job whose worker or node is lost is tried
again, `ATTEMPTS` times in all; when the head node is gone the run ends, and the same command goes on.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import time
import uuid
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpo_replications
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness import cluster_task
from grpo_replications.shared.harness.cluster_job import MARK, Request
from grpo_replications.shared.harness.jobs import Job, Origin, Outcome, write_atomic
from grpo_replications.shared.harness.paper_modules import packages_of
from grpo_replications.shared.harness.provenance import SOURCE_DIRECTORIES, package_versions
from grpo_replications.shared.harness.workers import POLL_SECONDS, job_environment, progress_file
from grpo_replications.shared.settings import Settings
from grpo_replications.shared.tracking import Tracking

ATTEMPTS = 3
CHECK_SECONDS = 5.0
HEAD_CHECKS = 3  # that must fail one after another
GIB = 2**30
RESUME = "Finished jobs are kept; start the cluster again and repeat the same command."


@dataclass(frozen=True)
class Needs:
    """What a job asks of its node: cores, GPUs, and bytes of memory (0: not known, none is asked for)."""

    cpus: int
    gpus: int = 0
    memory: int = 0

    def met_by(self, node: Mapping[str, float]) -> bool:
        """Whether a node with these resources, all of them free, could run the job."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return all(node.get(name, 0) >= amount for name, amount in asked.items())

    def __str__(self) -> str:
        return _amounts(self.cpus, self.gpus, self.memory)


def needs_of(settings: Settings, threads: int, requires: str | None, peak_memory_gib: float = 0.0) -> Needs:
    """What a job asks for: a core a thread; a GPU a process with vLLM, or with a model where the profile needs GPUs.

    `requires` is the profile's; `peak_memory_gib` the largest memory of a job of this experiment in an earlier record.
    """
    model = requires in ("gpu", "hub") and getattr(settings, "model", None) is not None
    gpus = getattr(settings, "processes", 1) if model or getattr(settings, "use_vllm", False) else 0
    return Needs(threads, gpus, int(peak_memory_gib * GIB))


def check_ray() -> None:
    """Make sure that ray is installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise ReplicationError(
            'ray is not installed: pip install "grpo-replications[cluster]" (in a checkout: .venv/bin/python -m pip '
            'install -c constraints.txt -e ".[cluster]"), or run without --executor ray.'
        ) from None


def unmet(asked: Iterable[tuple[Job, Needs]], nodes: list[Mapping[str, float]]) -> str | None:
    """A sentence on the first job that no node could run even if it were free; None where there is none."""
    for job, needs in asked:
        if not any(needs.met_by(node) for node in nodes):
            have = [_amounts(node.get("CPU", 0), node.get("GPU", 0), node.get("memory", 0)) for node in nodes]
            listed = "; ".join(f"{count} with {text}" for text, count in Counter(have).items()) or "none"
            return f"{job} needs {needs} on one node, and no node of the Ray cluster has them. Its nodes: {listed}."
    return None


def pack_source(paper_directory: Path) -> tuple[bytes, str]:
    """A zip of the suite's source and the paper's, and the paper's path inside it."""
    package = Path(grpo_replications.__file__).resolve().parent
    checkout = len(list(grpo_replications.__path__)) > 1  # the other packages lie beside it
    base = package.parent
    files = [base / "pyproject.toml"] if checkout else []  # by which a checkout is known
    for name in SOURCE_DIRECTORIES if checkout else [package.name]:
        files += (base / name).rglob("*")
    packed = {path.relative_to(base).as_posix(): path for path in files}
    paper = paper_directory.resolve()
    if any(paper.is_relative_to(base / name) for name in SOURCE_DIRECTORIES):
        inside = paper.relative_to(base).as_posix()
    else:
        top = (packages_of(paper) or [paper])[-1]
        inside = f"paper/{paper.relative_to(top.parent).as_posix()}"
        packed |= {f"paper/{path.relative_to(top.parent).as_posix()}": path for path in top.rglob("*")}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(packed.items()):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, name)
    return stream.getvalue(), inside


class Cluster:
    """A connection to a Ray cluster: one that is there, or one on this machine that ends with the run."""

    def __init__(self, address: str | None, paper_directory: Path, say: Callable[[str], None]) -> None:
        check_ray()
        import ray

        self.say = say
        self._own = not ray.is_initialized()
        if self._own:
            _connect(address)
        ray.cloudpickle.register_pickle_by_value(cluster_task)
        archive, self._paper = pack_source(paper_directory)
        self._archive = ray.put(archive)
        self._task = ray.remote(cluster_task.run_task)
        self._running: list[tuple[Job, Any]] = []
        self._head = ray.get_runtime_context().gcs_address
        self._head_missed, self._checked = 0, time.monotonic()
        self._cores = _cores(_nodes())

    def check(self, asked: Iterable[tuple[Job, Needs]]) -> None:
        """ReplicationError with the first job that no node of the cluster can run."""
        problem = unmet(asked, _nodes())
        if problem:
            raise ReplicationError(f"{problem} Add a node, or leave the experiment out by --only.")

    def run(
        self,
        jobs: list[Job],
        needs: Mapping[str, Needs],
        checkpointed: set[str],
        jobs_directory: Path,
        origin: Origin,
        tracking: Tracking | None,
        workers: int | None,
        tick: Callable[[list[Job]], None],
    ) -> Iterator[tuple[Job, Outcome]]:
        """Run jobs and yield each with its outcome as it ends, its files written; otherwise as `workers.run_jobs`.

        `needs`: by the job's key. `checkpointed`: keys of those that run in `jobs_directory` itself. `workers`: at most
        so many at a time; None: as many as the cluster has room for.
        """
        import ray

        mark = uuid.uuid4().hex
        if checkpointed:
            write_atomic(jobs_directory / MARK, mark)
        queue, lost = deque(jobs), Counter[str]()
        while queue or self._running:
            while queue and len(self._running) < (workers or self._cores):
                job = queue.popleft()
                shared = jobs_directory.resolve() if job.key in checkpointed else None
                request = Request(job, self._paper, origin, tracking, package_versions(), shared, mark)
                self._running.append((job, self._submit(request, needs[job.key])))
            streams = [stream for _, stream in self._running]
            ray.wait(streams, num_returns=1, timeout=POLL_SECONDS)
            ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
            for entry in [entry for entry in self._running if any(entry[1] is stream for stream in ready)]:
                job, stream = entry
                outcome = self._next(job, stream, jobs_directory)
                if outcome is None:
                    continue
                self._running.remove(entry)
                progress_file(jobs_directory, job).unlink(missing_ok=True)
                if outcome.status != LOST:
                    yield job, outcome
                    continue
                lost[job.key] += 1
                if lost[job.key] == ATTEMPTS:
                    yield job, Outcome("failed", f"lost {ATTEMPTS} times, the last time because {outcome.message}")
                    continue
                self.say(f"{job}: {outcome.message}; it is tried again ({lost[job.key] + 1} of {ATTEMPTS}).")
                queue.append(job)
            running = [job for job, _ in self._running]
            self._watch([(job, needs[job.key]) for job in (*running, *queue)])
            tick(running)
        (jobs_directory / MARK).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop what still runs, and leave the cluster."""
        import ray

        for _, stream in self._running:
            with contextlib.suppress(Exception):
                ray.cancel(stream, force=True)
        self._running.clear()
        if self._own and not self._head_missed:  # without a head, shutdown would wait for it
            ray.shutdown()

    def _submit(self, request: Request, needs: Needs) -> Any:
        environment = job_environment(request.job.settings["threads"])
        if not needs.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": 0, "num_returns": "streaming"}
        if needs.memory:
            options["memory"] = needs.memory
        shared = str(request.shared) if request.shared else None
        arguments = (self._archive, pickle.dumps(request), request.job.stem, environment, shared)
        return self._task.options(**options).remote(*arguments)

    def _next(self, job: Job, stream: Any, jobs_directory: Path) -> Outcome | None:
        """Take in what a job's worker has sent; its outcome once it has ended, with LOST where it was lost."""
        import ray
        from ray import exceptions

        try:
            message = ray.get(next(stream))
        except exceptions.RayTaskError as error:
            return Outcome("failed", f"on its node: {error.cause!r}")
        except (exceptions.RaySystemError, ConnectionError) as error:
            raise ReplicationError(f"The Ray cluster does not answer ({type(error).__name__}). {RESUME}") from None
        except exceptions.OutOfMemoryError:
            return Outcome(LOST, "its node ran out of memory")
        except (exceptions.RayError, StopIteration) as error:
            return Outcome(LOST, f"its worker was lost ({type(error).__name__})")
        if "progress" in message:
            write_atomic(progress_file(jobs_directory, job), message["progress"], durable=False)
            return None
        if message["code"] < 0:
            return Outcome(LOST, f"its process on {message['node']} was killed (signal {-message['code']})")
        if message["outcome"] is None:
            reason = (message["error"].splitlines() or [f"exit status {message['code']}"])[-1]
            text = f"{message['node']} cannot run jobs: {reason}. Every node needs the suite's packages."
            return Outcome("stop", text)
        _store(message["files"], job, jobs_directory)
        return pickle.loads(message["outcome"])

    def _watch(self, waiting: list[tuple[Job, Needs]]) -> None:
        """Every few seconds: is the head there, and does a node remain for every job?"""
        if time.monotonic() - self._checked < CHECK_SECONDS or not waiting:
            return
        self._checked = time.monotonic()
        # Ray itself waits a minute for its head and then ends this process without a word of ours: nothing here may
        # ask the head for anything before this connection succeeds.
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CHECK_SECONDS).close()
        except OSError:
            self._head_missed += 1
            if self._head_missed >= HEAD_CHECKS:
                raise ReplicationError(f"The head node of the Ray cluster, {self._head}, is gone. {RESUME}") from None
            return
        self._head_missed = 0
        nodes = _nodes()
        self._cores = _cores(nodes)
        problem = unmet(waiting, nodes)
        if problem:
            raise ReplicationError(f"{problem} {RESUME}")


LOST = "lost"  # an outcome that is not the job's own


def _connect(address: str | None) -> None:
    import ray

    local = {} if address or os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except Exception as error:  # where its processes do not start in time, Ray raises no more special one
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ReplicationError(
            f"No Ray cluster can be reached at {address or 'this machine'}: {reason} Start one by 'ray start --head' "
            "and give its address by --address HOST:6379; where it asks for a token, set RAY_AUTH_MODE and "
            "RAY_AUTH_TOKEN as on its nodes."
        ) from None


def _nodes() -> list[Mapping[str, float]]:
    """Resources of every node that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _cores(nodes: list[Mapping[str, float]]) -> int:
    """How many jobs could run side by side at most, each needing a core."""
    return max(1, int(sum(node.get("CPU", 0) for node in nodes)))


def _store(files: Mapping[str, bytes], job: Job, jobs_directory: Path) -> None:
    """Write what a job left on its node; its result comes last, so that it is never there without the rest."""
    (jobs_directory / f"{job.stem}.error.txt").unlink(missing_ok=True)
    result = f"jobs/{job.stem}.json"
    for name in sorted(files, key=lambda name: (name == result, name)):
        target = jobs_directory.parent / name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, files[name])


def _amounts(cpus: float, gpus: float, memory: float) -> str:
    parts = [f"{cpus:g} CPU{'s' if cpus != 1 else ''}", f"{gpus:g} GPU{'s' if gpus != 1 else ''}"]
    return ", ".join([*parts, *([f"{memory / GIB:.1f} GiB of memory"] if memory else [])])
