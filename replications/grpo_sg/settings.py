"""Settings of every experiment of this replication; a profile sets them, and what it leaves out has the value here."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from grpo_replications.shared.models.settings import BenchmarkSettings, SmallStart
from grpo_replications.shared.settings import Settings
from grpo_replications.shared.training.settings import MethodSettings, UpdateSettings

# --- gradients and weights --------------------------------------------------------------------------------------------


class AdditionSamples(Settings):
    """Completions that a model samples for additions."""

    model: str = Field(description="name of the model that samples")
    max_new_tokens: int = Field(ge=1, description="tokens of a completion at most")
    low: int = Field(ge=0, description="smallest operand")
    high: int = Field(ge=0, description="largest operand")
    system_message: str = Field(description="system message of the prompts")


class TokenGradientsSettings(AdditionSamples):
    """`token-gradients`."""

    completions: int = Field(ge=1, description="completions of a seed, each of a problem of its own")
    tokens_per_completion: int = Field(ge=1, description="tokens whose gradients are taken, evenly spaced")


class SampledGroups(AdditionSamples):
    """`same-batch-embedded`; groups of completions that a model samples for additions."""

    prompts: int = Field(ge=1, description="prompts of a seed")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    reward: Literal["addition", "parity"] = Field(description="parity of token ids is for a model that cannot add")


class IdentifiabilitySettings(SampledGroups):
    """`identifiability`."""

    shifts: list[float] = Field(min_length=1, description="constants added to all logits, for the weights")
    scales: list[float] = Field(description="factors on all logits, for the weights")
    gradient_shifts: list[float] = Field(description="the same, for the gradients")
    gradient_scales: list[float] = Field(description="the same, for the gradients")


class BoundSettings(Settings):
    """`sharpness-bound`: many small policies at once, trained by Adam."""

    method: Literal["grpo", "sharpness", "sharpness-mean1"] = Field(description="token weights of the training")
    labels: Literal["sums", "shuffled"] = Field(description="right answers, or the same ones in another order")
    train_size: int = Field(ge=2, description="prompts to train on")
    replicates: int = Field(ge=1, description="policies of a seed")
    base: int = Field(ge=2, description="operands are below it; base^2 prompts")
    hidden: int = Field(ge=1, description="hidden units of a policy")
    noise: float = Field(ge=0, description="scale of the random initial weights")
    head_shift: float = Field(description="added to all logits, so that weights are not all at their lower bound")
    steps: int = Field(ge=1, description="optimizer steps")
    lr: float = Field(gt=0, description="learning rate (Adam)")
    prompts_per_step: int = Field(ge=1, description="groups a step")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    checkpoints: list[int] = Field(min_length=1, description="steps at which the terms are measured")
    radii: list[float] = Field(min_length=1, description="radii of the sharpness, in units of the parameters")


# --- training: the small transformer ----------------------------------------------------------------------------------


class SmallSettings(MethodSettings, SmallStart):
    """One method from a seed's start on the small transformer: 128 completions a rollout, answers of up to 4 tokens."""

    prompts_per_step: int = Field(16, ge=1, description="groups a rollout")
    group_size: int = Field(8, ge=2, description="completions of a prompt, G")
    max_new_tokens: int = Field(4, ge=1, description="tokens of a completion at most: three digits and an end")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="of activations")
    rollouts: int = Field(ge=1, description="rollouts")
    eval_every: int = Field(ge=1, description="rollouts from one look at the problems to the next")
    equal: Literal["samples", "steps"] = Field(
        "samples", description='"steps": a method with two optimizer steps a rollout gets half the rollouts'
    )


class ShiftedTrainingSettings(SmallSettings):
    """`identifiability-training`."""

    shifts: list[float] = Field(min_length=1, description="constants added to all logits")


class SensitivitySettings(SmallSettings):
    """`sensitivity`: values that replace one constant of the weight at a time."""

    alphas: list[float] = Field(description="in place of alpha")
    taus: list[float] = Field(description="in place of tau")
    mus: list[float] = Field(description="in place of mu")
    lowers: list[float] = Field(description="in place of lower")
    uppers: list[float] = Field(description="in place of upper")


# --- training: many small transformers at once ------------------------------------------------------------------------


class SumsStart(Settings):
    """A small transformer taught running sums modulo 10, and how its rollouts are drawn."""

    terms: int = Field(ge=1, description="digits of an answer")
    width: int = Field(64, ge=1, description="hidden units")
    layers: int = Field(2, ge=1, description="layers")
    heads: int = Field(4, ge=1, description="attention heads")
    inner: int = Field(128, ge=1, description="units of a feed-forward layer")
    start_rate: float = Field(gt=0, lt=1, description="exact solve rate at which teaching ends")
    pretrain_lr: float = Field(5e-4, gt=0, description="learning rate of the teaching (Adam)")
    pretrain_batch: int = Field(64, ge=1, description="problems a step of the teaching")
    pretrain_every: int = Field(5, ge=1, description="steps of the teaching from one look to the next")
    pretrain_max_steps: int = Field(3000, ge=0, description="steps after which teaching counts as failed")
    prompts_per_step: int = Field(8, ge=2, description="groups a rollout")
    group_size: int = Field(8, ge=2, description="completions of a prompt, G")
    rollouts: int = Field(ge=1, description="rollouts")
    lr: float = Field(gt=0, description="learning rate (Adam)")


class ManyTrainingSettings(SumsStart):
    """`many-generalization` and `many-rates`: one method."""

    method: Literal["grpo", "sharpness", "sharpness-reverse", "advantage-reweighting", "lopti", "80/20"] = Field(
        description="token weights, at mean 1, tau fitted to each start; lopti and 80/20 as published"
    )
    contrast: float = Field(1.0, gt=0, description="factor on the weights' deviation from their mean")
    updates: int = Field(1, ge=1, description="optimizer steps a rollout; lopti makes two whatever it is")
    train_problems: int = Field(0, ge=0, description="size of a fixed set of training problems; 0: new ones each step")
    train_level: float = Field(0.6, gt=0, lt=1, description="rate on the fixed set at which methods are compared")
    look_every: int = Field(ge=1, description="rollouts from one look at the solve rates to the next")
    held_out: int = Field(512, ge=1, description="held-out problems")
    curves: bool = Field(False, description="whether solve rates by step are kept")


class SameBatchSettings(SumsStart):
    """`many-same-batch`: every weighting on the batches of one run of plain GRPO."""


class ManyPuzzlesSettings(Settings):
    """`many-puzzles`: one method on Knights & Knaves in symbols."""

    people: int = Field(ge=2, le=4, description="people of a puzzle")
    max_tokens: int = Field(ge=7, description="tokens of a completion at most")
    train_puzzles: int = Field(ge=1, description="puzzles to teach and to train on, all different")
    width: int = Field(64, ge=1, description="hidden units")
    layers: int = Field(2, ge=1, description="layers")
    heads: int = Field(4, ge=1, description="attention heads")
    inner: int = Field(128, ge=1, description="units of a feed-forward layer")
    initial_scale: float = Field(4.0, gt=0, description="factor on the new weights, before the teaching")
    start_rate: float = Field(gt=0, lt=1, description="share of sampled answers that are right when teaching ends")
    pretrain_lr: float = Field(3e-3, gt=0, description="learning rate of the teaching (Adam)")
    pretrain_batch: int = Field(32, ge=1, description="puzzles a step of the teaching")
    pretrain_every: int = Field(20, ge=1, description="steps of the teaching from one look to the next")
    pretrain_max_steps: int = Field(2000, ge=0, description="steps after which teaching counts as failed")
    method: Literal["grpo", "sharpness", "advantage-reweighting", "lopti", "80/20"] = Field(
        description="token weights, at mean 1, tau fitted to each start; lopti and 80/20 as published"
    )
    lr: float = Field(gt=0, description="learning rate (Adam)")
    updates: int = Field(1, ge=1, description="optimizer steps a rollout; lopti makes two whatever it is")
    prompts_per_step: int = Field(8, ge=2, description="groups a rollout")
    group_size: int = Field(8, ge=2, description="completions of a prompt, G")
    rollouts: int = Field(ge=1, description="rollouts")
    held_out: int = Field(500, ge=1, description="held-out puzzles, the same for all seeds")
    samples: int = Field(4, ge=1, description="answers to each held-out puzzle, at the end")


# --- training: language models ----------------------------------------------------------------------------------------


class ComparisonSettings(MethodSettings):
    """One method from the start of a language model, looked at on the way."""

    model: str = Field(description="name of the model to start from")
    rollouts: int = Field(ge=1, description="rollouts")
    eval_every: int = Field(ge=0, description="rollouts from one look at the problems to the next; 0: at the end only")
    eval_batch_size: int = Field(ge=1, description="problems decoded at once")
    train_size: int = Field(ge=1, description="problems to train on")
    validation_size: int = Field(ge=1, description="problems held out")
    system_message: str = Field(description="system message of the prompts")


class AdditionTrainingSettings(ComparisonSettings):
    """`training`."""

    low: int = Field(ge=0, description="smallest operand")
    high: int = Field(ge=0, description="largest operand")
    longer_low: int = Field(ge=0, description="smallest operand of the longer problems")
    longer_high: int = Field(ge=0, description="largest operand of the longer problems")
    longer_size: int = Field(ge=1, description="longer problems")


class PuzzleTrainingSettings(ComparisonSettings):
    """`training-kk`; `validation_size` is of each number of people."""

    people: list[int] = Field(min_length=1, description="people of a puzzle, mixed")
    reward: Literal["strict", "shaped"] = Field(description="what is paid: see `shared.tasks.knights_and_knaves`")
    parser: Literal["strict", "ar-lopti"] = Field("strict", description="the rule by which an answer is read")
    layout: Literal["strict", "loose"] = Field("strict", description="whether text may stand around the tags: loose")
    public: str | None = Field(None, description="hub id or directory of public puzzles; None: drawn by the suite")
    prompt_ending: str = Field("", description="what the model's answer is begun with, such as <think>")
    warm_steps: int = Field(ge=0, description="supervised steps before all methods; 0 for none")
    warm_batch: int = Field(ge=1, description="puzzles a supervised step")
    warm_lr: float = Field(ge=0, description="learning rate of the supervised steps (AdamW)")

    @model_validator(mode="after")
    def _taught_answers_begin_themselves(self) -> Self:
        if self.warm_steps and self.prompt_ending:
            raise ValueError("prompt_ending needs warm_steps = 0: the supervised start teaches whole answers")
        return self


class MathsTrainingSettings(UpdateSettings, BenchmarkSettings):
    """`training-maths`: several methods from the same start, one after the other."""

    methods: list[str] = Field(min_length=1, description='methods, "grpo" and "sharpness" among them')
    model: str = Field(description="name of the model to start from")
    rollouts: int = Field(ge=1, description="rollouts of each method")
    window: int = Field(ge=1, description="rollouts over which curves are averaged")
    dataset: str = Field(description="hub id or file of the training problems")


class AgenticSettings(Settings):
    """`agentic-qa`, which is not implemented: what it would be run with."""

    model: str = Field(description="name of the model to start from")
    method: str = Field(description="token weight")
