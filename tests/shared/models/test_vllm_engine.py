"""Benchmarks by vLLM's interface: the numbers of transformers under greedy decoding, and what each request asks for.

vLLM itself is not met here: a module with the same interface takes its place (`fake_vllm`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import vllm_engine
from grpo_replications.shared.models.evaluation import benchmark_estimates, evaluate_benchmark
from grpo_replications.shared.models.settings import BenchmarkSettings
from grpo_replications.shared.models.vllm_engine import check_engine
from grpo_replications.shared.models.vllm_engine import vllm_engine as engine_of
from grpo_replications.shared.tasks.benchmarks import LoadedBenchmark
from tests.shared.models import fake_vllm, test_evaluation
from tests.shared.models.test_evaluation import contains, problems

policy = test_evaluation.policy

SETTINGS = {"benchmarks": ["one", "two"], "eval_batch_size": 2, "eval_max_new_tokens": 6, "eval_samples": 1}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[fake_vllm.LLM]:
    return fake_vllm.install(monkeypatch)


def settings(**changes: Any) -> BenchmarkSettings:
    return BenchmarkSettings(**{**SETTINGS, "eval_temperature": 0.0, "eval_engine": "vllm", **changes})


def adapted(model: Any) -> Any:
    """A model with an adapter that changes what it says."""
    torch.manual_seed(1)
    found = get_peft_model(model, LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, value in found.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value.data, std=1.0)
    return found.train()


def test_greedy_numbers_are_those_of_transformers_with_an_adapter_too(
    policy: Any,
    engines: list[fake_vllm.LLM],
    tmp_path: Path,
) -> None:
    model, tokenizer = policy
    plain = evaluate_benchmark(model, tokenizer, problems(), contains, max_new_tokens=6)
    try:
        changed = adapted(model)
        state = {name: value.clone() for name, value in changed.state_dict().items()}
        own = evaluate_benchmark(changed, tokenizer, problems(), contains, max_new_tokens=6)
        with engine_of(changed, tokenizer, "float32", 12, tmp_path) as engine:
            found = evaluate_benchmark(changed, tokenizer, problems(), contains, max_new_tokens=6, engine=engine)
            assert [path.parent for path in tmp_path.rglob("config.json")] == [engines[0].directory]
        tests = {name: LoadedBenchmark(problems(), contains) for name in ("one", "two")}
        estimates = [
            benchmark_estimates(changed, tokenizer, tests, settings(eval_engine=name), "float32", 0, tmp_path)
            for name in ("transformers", "vllm")
        ]
        assert all(torch.equal(value, state[name]) for name, value in changed.state_dict().items())
        assert changed.training and not list(tmp_path.iterdir())
    finally:
        changed.unload()
    assert found.completions == own.completions != plain.completions
    assert (found.correct == own.correct).all() and found.estimate == own.estimate
    assert estimates[0] == estimates[1] and len(engines) == 2, "one engine for all benchmarks"


def test_each_request_has_a_seed_of_its_own(policy: Any, engines: list[fake_vllm.LLM]) -> None:
    model, tokenizer = policy
    sampled: dict[str, Any] = {"max_new_tokens": 5, "samples": 3, "temperature": 0.9, "batch_size": 4}
    with engine_of(model, tokenizer, "float32", 12) as engine:
        runs = [
            evaluate_benchmark(model, tokenizer, rows, contains, engine=engine, seed=seed, **sampled)
            for rows, seed in ((problems(), 1), (problems().select(range(3)), 1), (problems(), 2))
        ]
    first, part, other = runs
    assert first.completions[:3] == part.completions, "whatever is decoded beside it"
    assert first.completions != other.completions and len(set(first.completions[0])) > 1
    assert first.correct.shape == (5, 3) and first.estimate.kind == other.estimate.kind
    asked = engines[0].asked
    assert len({one.seed for one in asked}) == 30 and min(one.seed for one in asked) >= 0
    assert {(one.temperature, one.top_p, one.max_tokens, tuple(one.stop_token_ids)) for one in asked} == {
        (0.9, 1.0, 5, (0,))
    }


def test_the_policy_is_back_where_it_was_when_the_engine_fails(
    policy: Any,
    engines: list[fake_vllm.LLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("max_model_len (12) is greater than the derived max_model_len")

    monkeypatch.setattr(sys.modules["vllm"], "LLM", refuse)
    with pytest.raises(ValueError, match="max_model_len"), engine_of(*policy, "float32", 12, tmp_path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("absent", "changes", "processes", "said"),
    [
        ("vllm", {}, 1, "vLLM is not installed: pip install"),
        ("GPU", {}, 1, "torch finds no GPU here"),
        (None, {}, 2, "decodes in one process, and processes = 2"),
        (
            None,
            {"eval_temperature": 0.001},
            1,
            "temperatures from 0.01 to 2, or greedily at 0; eval_temperature = 0.001",
        ),
        (None, {"eval_temperature": 0.7}, 1, None),
        ("vllm", {"eval_engine": "transformers"}, 2, None),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_loaded(
    absent: str | None, changes: dict[str, Any], processes: int, said: str | None,
    engines: list[fake_vllm.LLM], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if absent == "vllm":
        monkeypatch.setattr(vllm_engine.importlib.util, "find_spec", lambda name: None)
    elif absent == "GPU":
        monkeypatch.setattr(vllm_engine, "has_gpu", lambda: False)
    if said is None:
        return check_engine(settings(**changes), processes)
    with pytest.raises(ReplicationError, match=said):
        check_engine(settings(**changes), processes)
