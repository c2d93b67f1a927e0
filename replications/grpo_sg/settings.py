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


class IdentifiabilitySettings(AdditionSamples):
    """`identifiability`."""

    prompts: int = Field(ge=1, description="prompts of a seed")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    reward: Literal["addition", "parity"] = Field(description="parity of token ids is for a model that cannot add")
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


class SmallBestSettings(SmallSettings):
    """The same, each method at its own best learning rate."""

    lr: None = Field(None, description="fixed: chosen among lrs")
    lrs: list[float] = Field(min_length=1, description="learning rates to choose from")
    selection_seeds: int = Field(ge=1, description="seeds on which the rate is chosen, apart from those reported")


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
