"""The built wheel in another project: one with a `shared` package of its own, far from the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BARE = """
import sys
from importlib.machinery import PathFinder

HIDDEN = {"gguf", "matplotlib", "mpl_toolkits", "wandb", "tensorboard"}  # the extras suite and track
find = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, *rest: None if name.partition(".")[0] in HIDDEN else find(name, *rest)
)
"""
TRAINING = """
from datasets import Dataset
from trl import GRPOConfig
from grpo_replications.shared.models.catalog import tiny_random
from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer

model, tokenizer = tiny_random()
data = Dataset.from_dict({"prompt": ["1+1=", "1+2="], "answer": ["2", "3"]})
config = GRPOConfig(
    output_dir="out", max_steps=1, per_device_train_batch_size=4, num_generations=2, max_completion_length=3,
    report_to="none", use_cpu=True, bf16=False,
)
trainer = TokenWeightedGRPOTrainer(
    model=model, processing_class=tokenizer, reward_funcs=lambda completions, **_: [0.0, 1.0] * 2, args=config,
    train_dataset=data, token_weight="lambda-grpo", group_log="groups.jsonl",
)
trainer.train()
"""


@dataclass(frozen=True)
class Project:
    """Another project, with the wheel installed below it."""

    root: Path

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the project's directory; -S: this environment's packages without links to the checkout."""
        path = os.pathsep.join((str(self.root / "env"), sysconfig.get_path("purelib")))
        environment = {**os.environ, "PYTHONPATH": path}
        environment.pop("REPLICATE_RESULTS", None)
        command = [sys.executable, "-S", *arguments]
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)

    def replicate(self, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command line, as the installed script `replicate` does, after some code."""
        code = f"import sys; from grpo_replications.replications.__main__ import main; sys.exit(main({arguments!r}))"
        return self.python("-c", before + code)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The wheel, built offline from a copy of the source and installed into a project under git."""
    work = tmp_path_factory.mktemp("wheel")
    source, root = work / "source", work / "project"
    for name in ("grpo_replications", "shared", "synthetic", "replications"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    (root / "shared").mkdir(parents=True)
    (root / "shared" / "__init__.py").write_text('OWNER = "another project"\n')
    (root / ".gitignore").write_text("env/\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    offline = ["--no-deps", "--no-index"]
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (
        [*pip, "wheel", *offline, "--no-build-isolation", "-w", str(work), str(source)],
        [*pip, "install", *offline, "--find-links", str(work), "--target", str(root / "env"), "grpo-replications"],
        ["git", "-C", str(root), "init", "-q"],
        ["git", "-C", str(root), "add", "."],
        ["git", "-C", str(root), *identity, "commit", "-qm", "another project"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return Project(root)


@pytest.mark.slow
def test_results_go_to_the_working_directory(project: Project) -> None:
    listed = project.replicate("list")
    assert listed.returncode == 0 and "lambda-grpo" in listed.stdout, listed.stderr
    arguments = ("run", "lambda-grpo", "--profile", "smoke", "--only", "flaw")
    done = project.replicate(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    results = project.root / "results-mine"
    record = json.loads((results / "lambda_grpo" / "smoke" / "record.json").read_text())
    assert record["complete"] is False and record["experiments"]["flaw"]["jobs_finished"] > 0
    assert record["commit"] is None, "the commit of the other project says nothing about ours"
    assert (results / "index.html").is_file() and "results-mine/lambda_grpo/smoke" in done.stdout
    assert not list((project.root / "env").rglob("record.json"))
    refused = project.replicate(*arguments, "--update-committed")
    assert refused.returncode == 2 and "installed copy" in refused.stderr


@pytest.mark.slow
def test_the_trainer_trains_beside_a_shared_package_without_the_extras(project: Project) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^from grpo_replications[\w.]* import [\w, ]+", readme, re.M)
    assert lines
    ours = "import shared, grpo_replications\nprint(shared.OWNER, grpo_replications.__file__)\n"
    done = project.python("-c", "\n".join([BARE, *lines, ours, TRAINING]))
    assert done.returncode == 0, done.stderr
    assert f"another project {project.root / 'env'}" in done.stdout
    assert (project.root / "groups.jsonl").read_text().count("\n") == 2  # groups
    refused = project.replicate("run", "lambda-grpo", before=BARE)
    assert refused.returncode == 2 and "grpo-replications[suite]" in refused.stderr, refused.stderr
