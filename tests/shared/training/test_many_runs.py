"""Many runs at once: their updates are the trainer's, by TRL itself and by an independent formula in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.many_transformers import (
    Architecture,
    ManyTransformers,
    SeedStreams,
    named_as_in_transformers,
)
from grpo_replications.shared.models.precision import in_float64, with_exact_rotary
from grpo_replications.shared.theory.confidence_weights import sharpness_weights
from grpo_replications.shared.theory.weighting import TokenBatch
from grpo_replications.shared.training.many_runs import ManyRuns, Objective, Rollout, placed_weights
from grpo_replications.shared.training.token_weights import token_weighting
from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer
from tests.shared.training import grpo_oracle as oracle

S, B, G, T, V = 3, 2, 4, 5, 9


def reward_of(completions: list[list[int]]) -> list[float]:
    return [(sum(ids) * 7 % 23) / 10 for ids in completions]


def sharp(count: int = S, dtype: torch.dtype = torch.float64) -> ManyTransformers:
    """Models whose completions share prefixes."""
    many = ManyTransformers.initial(
        Architecture(V, width=16, inner=24), range(count), head_std=1.0, dtype=torch.float64
    )
    return many.to(dtype)


def shaken(many: ManyTransformers, seed: int) -> ManyTransformers:
    """Copies with slightly other weights."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {
        name: value + 0.02 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in many.parameters.items()
    }
    return replace(many, parameters=parameters)


def rollout_of(many: ManyTransformers, lengths: Tensor | None = None, seed: int = 0) -> Rollout:
    """A rollout of the models, with completions cut to `lengths` (S, B, G)."""
    prompts = torch.arange(B * 3).view(B, 3).expand(len(many), -1, -1)
    completions = many.sample(prompts, SeedStreams(range(seed, seed + len(many)), 1).uniforms(B, G, T))
    lengths = torch.full(completions.shape[:3], T) if lengths is None else lengths
    mask = torch.arange(T) < lengths.unsqueeze(-1)
    rewards = torch.tensor(
        reward_of([row[kept].tolist() for row, kept in zip(completions.view(-1, T), mask.view(-1, T))])
    )
    return Rollout(
        completions, mask, rewards.view(lengths.shape), lambda these: these.completion_logits(prompts, completions)
    )


def uneven() -> Tensor:
    return torch.randint(1, T + 1, (S, B, G), generator=torch.Generator().manual_seed(2))


# --- the trainer ------------------------------------------------------------------------------------------------------


class Recorder(TrainerCallback):
    def __init__(self) -> None:
        self.gradient: dict[str, Tensor] | None = None
        self.trainer: Any = None

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self.gradient is None:
            named = self.trainer.accelerator.unwrap_model(self.trainer.model).named_parameters()
            self.gradient = {name: p.grad.detach().clone() for name, p in named if p.grad is not None}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a model that a stack can hold, from which TRL rebuilds the reference policy."""
    tokenizer = catalog.load("tiny-random")[1]
    model = catalog.random_llama(len(tokenizer), 32, 2, 0, tokenizer.eos_token_id)
    return str(catalog.save(model, tokenizer, tmp_path_factory.mktemp("start")))


def moved(start: str, seed: int) -> Any:
    """That model, moved away from the reference and sharp enough that completions share prefixes."""
    model, _ = catalog.load(start)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        model.model.norm.weight *= 6
    return model


def trained_by_trl(
    start: str, directory: Path, seed: int, method: Any, lr: float, **settings: Any
) -> tuple[Any, dict[str, Tensor]]:
    """A trainer after its steps on one rollout, and the gradient of the first."""
    recorder = Recorder()
    trainer = TokenWeightedGRPOTrainer(
        model=moved(start, seed),
        reward_funcs=lambda completion_ids, **_: reward_of(completion_ids),
        args=GRPOConfig(
            output_dir=str(directory),
            per_device_train_batch_size=B * G,
            num_generations=G,
            max_completion_length=T,
            learning_rate=lr,
            max_grad_norm=0.0,
            optim="sgd",
            lr_scheduler_type="constant",
            use_bias_correction_kl=False,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            seed=seed,
            **settings,
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"{i}+{i + 1}=" for i in range(8)]}),
        processing_class=catalog.load(start)[1],
        callbacks=[recorder],
        token_weight=method,
    )
    recorder.trainer = trainer
    trainer.train()
    return trainer, recorder.gradient


def rollout_of_trl(trainers: list[Any]) -> Rollout:
    """What the trainers have sampled, as the rollout of a stack; their prompts are of one length."""
    prompts, completions, masks = [], [], []
    for trainer in trainers:
        batches = trainer._buffered_inputs[:1]
        order = torch.cat([batch["row"] for batch in batches]).argsort()
        prompts.append(torch.cat([batch["prompt_ids"] for batch in batches])[order][::G])
        for name, to in (("completion_ids", completions), ("completion_mask", masks)):
            rows = torch.cat([batch[name] for batch in batches])[order]
            to.append(torch.nn.functional.pad(rows, (0, T - rows.size(1))).view(B, G, T))
    prompts, completions, mask = torch.stack(prompts), torch.stack(completions), torch.stack(masks).bool()
    rows = zip(completions.view(-1, T), mask.view(-1, T))
    rewards = torch.tensor(reward_of([ids[kept].tolist() for ids, kept in rows])).view(mask.shape[:3])
    return Rollout(completions, mask, rewards, lambda these: these.completion_logits(prompts, completions))


@pytest.mark.parametrize(
    ("method", "loss_type", "beta"),
    [
        ("grpo", "dapo", 0.0),
        ("grpo", "grpo", 0.0),
        ("lambda-grpo", "dapo", 0.0),
        ("lambda-grpo", "grpo", 0.3),
        ("sharpness", "dapo", 0.0),
        ("lambda-grpo*sharpness-mean1", "dapo", 0.3),
        ("80/20", "dapo", 0.3),
    ],
)
def test_gradients_are_those_of_the_trainer(
    start: str, tmp_path: Path, method: str, loss_type: str, beta: float
) -> None:
    seeds = (3, 4)
    trained = [
        trained_by_trl(
            start, tmp_path / str(seed), seed, token_weighting(method), 0.0, loss_type=loss_type, beta=beta, max_steps=1
        )
        for seed in seeds
    ]
    many = ManyTransformers.of([moved(start, seed) for seed in seeds])
    rollout = rollout_of_trl([trainer for trainer, _ in trained])
    assert 0 < rollout.mask.float().mean() <= 1 and len(rollout.rewards.unique()) > 2
    objective = Objective(method=token_weighting(method), loss_type=loss_type, beta=beta, optimizer="sgd")
    runs = ManyRuns(many, objective, 0.0, reference=ManyTransformers.of([catalog.load(start)[0]] * len(seeds)))
    gradients = runs.gradients(rollout)
    for s, (_, expected) in enumerate(trained):
        ours = named_as_in_transformers(gradients, many.architecture, s)
        scale = torch.cat([g.flatten() for g in expected.values()]).norm()
        assert scale > 0 and expected.keys() == ours.keys()
        difference = torch.cat([(ours[name] - g).flatten() for name, g in expected.items()]).norm()
        assert float(difference / scale) < 1e-5


@pytest.mark.parametrize(("method", "steps"), [("lambda-grpo", 3), ("lopti", 2)])
def test_several_updates_on_a_rollout_are_those_of_the_trainer(
    start: str, tmp_path: Path, method: str, steps: int
) -> None:
    lr = 0.05
    iterations = {} if method == "lopti" else {"num_iterations": steps}
    trainer, _ = trained_by_trl(
        start, tmp_path, 3, token_weighting(method), lr, loss_type="dapo", beta=0.0, max_steps=steps, **iterations
    )
    many = ManyTransformers.of([moved(start, 3)])
    before = many.copy()
    objective = Objective(method=token_weighting(method), optimizer="sgd", max_grad_norm=0.0, **iterations)
    made = ManyRuns(many, objective, lr).step(rollout_of_trl([trainer]))
    assert len(made) == steps
    assert made[-1].clipped > 0, "some token must be clipped, or that is not tested"
    theirs = ManyTransformers.of([trainer.model])
    steps_taken = [
        (theirs.parameters[name] - before.parameters[name], many.parameters[name] - before.parameters[name])
        for name in many.parameters
    ]
    scale = torch.cat([a.flatten() for a, _ in steps_taken]).norm()
    assert float(torch.cat([(a - b.detach()).flatten() for a, b in steps_taken]).norm() / scale) < 1e-4


# --- an independent formula in float64 --------------------------------------------------------------------------------


def oracle_gradient(
    many: ManyTransformers, s: int, rollout: Rollout, old: ManyTransformers, reference: ManyTransformers, **options: Any
) -> dict[str, Tensor]:
    """Gradient of run s by models of transformers in float64 and the formulas of the oracle."""
    prompts = torch.arange(B * 3).view(B, 3).repeat_interleave(G, dim=0)
    batch = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": rollout.completions[s].flatten(0, 1),
        "completion_mask": rollout.mask[s].flatten(0, 1).long(),
    }
    model, sampler, ref = (with_exact_rotary(in_float64(these.export(s))) for these in (many, old, reference))
    logps = oracle.completion_logps(model, batch)
    with torch.no_grad():
        old_logps, ref_logps = oracle.completion_logps(sampler, batch), oracle.completion_logps(ref, batch)
    lengths = rollout.mask[s].sum(dim=2).flatten().tolist()
    completions = [ids[:length] for ids, length in zip(batch["completion_ids"].tolist(), lengths)]
    a = torch.tensor(oracle.advantages(rollout.rewards[s].double().flatten().tolist(), G), dtype=torch.float64)
    mask = batch["completion_mask"].double()
    kind, method = options["kind"], options["method"]
    if method == "lambda-grpo":
        counts = oracle.prefix_counts(completions, G)
        weights = torch.tensor([[1 / c for c in row] + [1.0] * (T - len(row)) for row in counts], dtype=torch.float64)
        weights = weights.float().double()  # as the trainer keeps them
    elif method.startswith("sharpness"):
        weights = oracle.sharpness(oracle.raw_logits(model, batch), 2.0, 9.0, 0.25, 1.0, 1.4)
    else:
        weights = torch.ones_like(mask)
    if method.endswith("-mean1"):
        weights = weights / (weights * mask).sum() * mask.sum()
    normalizer = {"grpo": B * G, "dr_grpo": B * G * T}.get(kind, float(mask.sum()))
    value = oracle.placed_loss(
        kind,
        logps,
        old_logps,
        ref_logps,
        a,
        mask,
        weights=weights,
        placement=options["placement"],
        weight_kl=options["weight_kl"],
        beta=0.3,
        normalizer=normalizer,
    )
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(value, [p for p in model.parameters() if p.requires_grad])
    return dict(zip(names, gradients, strict=True))


@pytest.mark.parametrize(
    ("method", "placement", "weight_kl"),
    [
        ("grpo", "outside", True),
        ("lambda-grpo", "outside", True),
        ("lambda-grpo", "inside", False),
        ("sharpness", "outside", False),
        ("sharpness", "inside", False),
        ("sharpness", "inside", True),
        ("sharpness-mean1", "outside", False),
    ],
)
@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo"])
def test_gradients_off_policy_are_the_formulas(method: str, placement: str, weight_kl: bool, kind: str) -> None:
    old = sharp()
    many, reference = shaken(old, 1), shaken(old, 2)
    rollout = rollout_of(old, uneven())
    for parameter in many.trainable():
        parameter.requires_grad_()
    options = {} if method == "grpo" else {"placement": placement, "weight_kl": weight_kl}
    objective = Objective(method=token_weighting(method, **options), loss_type=kind, beta=0.3)
    gradients = ManyRuns(many, objective, 0.0, reference).gradients(rollout, sampler=old, visit=1)
    logps, old_logps = (rollout.logits(these).log_softmax(dim=-1) for these in (many, old))
    ratios = (logps - old_logps).gather(4, rollout.completions.unsqueeze(4)).exp()
    assert float(ratios.max()) > 1.2 > 0.8 > float(ratios.min()), "some token must be clipped, or that is not tested"
    for s in range(S):
        ours = named_as_in_transformers(gradients, many.architecture, s)
        expected = oracle_gradient(
            many, s, rollout, old, reference, kind=kind, method=method, placement=placement, weight_kl=weight_kl
        )
        scale = torch.cat([g.flatten() for g in expected.values()]).norm()
        difference = torch.cat([(ours[name] - g).flatten() for name, g in expected.items()]).norm()
        assert float(difference / scale) < 1e-9  # process-set weights are float32


# --- what a run does not share with its neighbors ---------------------------------------------------------------------


def train(seeds: list[int], steps: int = 12, lrs: Any = 3e-3, **options: Any) -> ManyTransformers:
    many = ManyTransformers.initial(Architecture(V, width=16, inner=24), seeds, head_std=1.0)
    prompts = torch.arange(B * 3).view(B, 3).expand(len(seeds), -1, -1)
    runs, streams = ManyRuns(many, Objective(**options), lrs), SeedStreams(seeds, 1)
    for _ in range(steps):
        completions = many.sample(prompts, streams.uniforms(B, G, T))
        rewards = (completions == 4).double().mean(dim=-1)
        mask = torch.ones_like(completions, dtype=torch.bool)
        logits = lambda these, c=completions: these.completion_logits(prompts, c)  # noqa: E731
        runs.step(Rollout(completions, mask, rewards, logits))
    return many


@pytest.mark.parametrize("method", ["grpo", "lambda-grpo", "sharpness-mean1", "sharpness-logprob", "lopti"])
def test_a_seeds_run_does_not_depend_on_its_neighbors(method: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        together, alone = train([7, 2, 5, 11, 3], method=method), train([5], method=method)
    finally:
        torch.set_num_threads(threads)
    for name, value in alone.parameters.items():
        assert torch.equal(value[0], together.parameters[name][2])
    assert not torch.allclose(together.parameters["norm"][0], together.parameters["norm"][2])


def test_each_run_has_its_own_learning_rate_and_its_own_clipping() -> None:
    rates = [1e-3, 1e-3, 5e-3, 2e-3]
    seeds = [4, 6, 4, 6]
    for options in ({"optimizer": "adam"}, {"optimizer": "sgd", "max_grad_norm": 0.05}):
        together = train(seeds, lrs=rates, **options)
        for s, (seed, rate) in enumerate(zip(seeds, rates)):
            alone = train([seed], lrs=rate, **options)
            torch.testing.assert_close(alone.parameters["norm"][0], together.parameters["norm"][s])
        assert not torch.allclose(together.parameters["norm"][0], together.parameters["norm"][2])


def test_clipping_bounds_the_update_of_each_run() -> None:
    many = sharp()
    before = many.copy()
    rollout = rollout_of(many)
    norms = ManyRuns(many, Objective(optimizer="sgd", max_grad_norm=0.01), 1.0).step(rollout)[0].grad_norm
    moved = [(many.parameters[n] - before.parameters[n]).detach().flatten(1) for n in many.parameters]
    lengths = torch.cat(moved, dim=1).norm(dim=1)
    assert float(norms.min()) > 0.01
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.01), rtol=1e-3, atol=0)


def test_matched_weights_are_dealt_out_within_each_run() -> None:
    generator = torch.Generator().manual_seed(0)
    raw = 5 * torch.randn(S, B * G, T, generator=generator, dtype=torch.float64)
    logps = -torch.rand(S, B * G, T, generator=generator, dtype=torch.float64)
    mask = torch.ones(S * B * G, T, dtype=torch.bool)
    batch = TokenBatch(*(x.flatten(0, 1) for x in (logps, logps, raw)), None, mask, torch.zeros(len(mask)))
    placed = placed_weights(token_weighting("sharpness-logprob", match=True, upper=2.0, lower=0.0), batch, S).advantage
    for s in range(S):
        expected = sharpness_weights(raw[s].flatten(), upper=2.0, lower=0.0).sort().values
        torch.testing.assert_close(placed[s].flatten()[logps[s].flatten().argsort()], expected, rtol=1e-12, atol=0)


def test_silent_groups_move_nothing() -> None:
    many = sharp(dtype=torch.float32)
    before = many.copy()
    rollout = replace(rollout_of(many), rewards=torch.full((S, B, G), 0.35))
    metrics = ManyRuns(many, Objective(), 1.0).step(rollout)[0]
    assert metrics.silent.tolist() == [1.0] * S
    assert all(torch.equal(value, before.parameters[name]) for name, value in many.parameters.items())


def test_what_cannot_work_is_refused() -> None:
    for wrong in ({"loss_type": "sapo"}, {"optimizer": "lion"}, {"temperature": 0}, {"beta": -1}):
        with pytest.raises(ReplicationError):
            Objective(**wrong)
    with pytest.raises(ReplicationError, match="learning rates"):
        ManyRuns(sharp(), Objective(), [1.0, 2.0])
    many = sharp()
    rollout = rollout_of(many)
    many.parameters["norm"][1] = np.inf
    before = many.copy()
    with pytest.raises(ReplicationError, match=r"\[1\]"):
        ManyRuns(many, Objective(), 1.0).step(rollout)
    assert torch.equal(many.parameters["down" if "down" in many.parameters else "0.down"], before.parameters["0.down"])
