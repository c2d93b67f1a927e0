"""Settings of every experiment of this replication; a profile sets them, and what it leaves out has the value here."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from grpo_replications.shared.settings import Settings
from grpo_replications.shared.training.settings import MethodSettings, TrainingSettings

# --- closed forms, tables and logs ------------------------------------------------------------------------------------


class ClosedFormsSettings(Settings):
    """`closed-forms`."""

    p: float = Field(gt=0, lt=1, description="solve rate")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    groups: int = Field(ge=2, description="groups drawn a seed")
    exact_group_sizes: list[int] = Field(min_length=1, description="sizes at which 60-digit sums are compared")


class BigMathSettings(Settings):
    """`big-math`."""

    group_size: int = Field(ge=2, description="completions of a prompt, G")
    solve_rates: str = Field(description="source of solve rates: see `shared.planning.solve_rates`")


class CorollariesSettings(Settings):
    """`corollaries`."""

    solve_rates: str = Field(description="source of solve rates with a number of rollouts")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    p: float = Field(gt=0, lt=1, description="solve rate of the hard prompt that is compared with an even one")


class RateMixtureSettings(Settings):
    """`rate-mixture`."""

    solve_rates: str = Field(description="source of solve rates with a number of rollouts")
    grid_points: int = Field(ge=3, description="solve rates that the mixture may hold, denser towards 0 and 1")
    group_sizes: list[int] = Field(min_length=1, description="sizes whose silent share is predicted")
    draws: int = Field(ge=2, description="bootstrap draws of the problems")


class IdentitySettings(Settings):
    """`identity`."""

    draws: int = Field(ge=1, description="random matrices of scores, each tried with every k from 0 to G")
    largest_group: int = Field(ge=2, description="G is drawn from 2 up to it")
    largest_dimension: int = Field(ge=1, description="dimension of a score, at most")
    largest_baseline: float = Field(ge=0, description="size, at most, of what is added to all rewards of a group")


class DapoLogSettings(Settings):
    """`dapo-log`."""

    growth: Literal["exponential", "geometric", "reciprocal", "linear"] = Field(description="how the temperature grows")
    start: Literal["all", "interior", "clipped"] = Field(description="solve rates that the warp starts from")
    plateau: Literal["fixed", "fitted"] = Field(description="where the share ends")
    draws: int = Field(ge=2, description="bootstrap draws")


class DapoLogAuthorsSettings(Settings):
    """`dapo-log-authors`."""

    draws: int = Field(ge=2, description="bootstrap draws")


class DapoLogGenericSettings(Settings):
    """`dapo-log-generic`."""

    form: Literal["exponential", "hyperbolic"] = Field(description="of the curve")
    draws: int = Field(ge=2, description="bootstrap draws")


# --- the controlled run -----------------------------------------------------------------------------------------------


class ControlledSettings(Settings):
    """One method and one setting of the Bernoulli-logit run."""

    method: Literal["grpo", "dr-grpo", "rloo", "dapo"] = Field(description="the update")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    clip: float = Field(ge=0, lt=0.5, description="initial rates are clipped to [clip, 1 - clip]; 0 leaves them")
    rates: str = Field(description="source of solve rates: see `shared.planning.solve_rates`")
    prompts: int = Field(ge=4, description="prompts of a seed")
    steps: int = Field(ge=1, description="steps")
    lr: float = Field(gt=0, description="step size")
    max_redraws: int = Field(3, ge=0, description="of a silent group, by DAPO alone")
    target_p: float = Field(gt=0, lt=1, description="mean solve rate at which speeds are compared")
    equal_steps: int = Field(ge=0, description="steps at which solve rates are compared")
    equal_samples: int = Field(ge=0, description="completions a prompt at which solve rates are compared")


class ControlledRunSettings(ControlledSettings):
    """`controlled-run`."""

    curve_every: int = Field(ge=1, description="steps between the points of the mean curves")


# --- updates of TRL's trainer -----------------------------------------------------------------------------------------


class UpdateSettings(Settings):
    """Single optimizer steps of TRL's trainer with plain SGD, recorded as they happen."""

    model: str = Field(description="name of the model")
    precision: Literal["float32", "float64"] = Field(description="of the model and of every sum")
    reward: Literal["addition", "digits", "parity", "levels", "constant"] = Field(description="what is paid")
    levels: int | None = Field(None, ge=2, description='values of the reward "levels"')
    prompts: int = Field(ge=1, description="groups a step")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    micro_batch: int = Field(ge=1, description="completions a backward pass")
    max_new_tokens: int = Field(ge=1, description="tokens of a completion at most")
    loss_type: Literal["grpo", "dapo", "dr_grpo"] = Field(description="TRL's loss")
    scale_rewards: Literal["group", "none"] = Field(description="divisor of centered rewards")
    lr: float = Field(gt=0, description="learning rate")
    low: int = Field(ge=0, description="smallest operand")
    high: int = Field(ge=0, description="largest operand")
    system_message: str = Field(description="system message of the prompts")
    steps: int = Field(1, ge=1, description="optimizer steps")
    num_iterations: int = Field(1, ge=1, description="passes over a rollout")
    beta: float = Field(0.0, ge=0, description="coefficient of the KL term")

    @model_validator(mode="after")
    def _levels_belong_to_their_reward(self) -> Self:
        if (self.reward == "levels") != (self.levels is not None):
            raise ValueError('levels is set with reward = "levels", and only then')
        return self


class RealGradientsSettings(UpdateSettings):
    """`real-gradients`: the theorem's own case, one on-policy step without a KL term."""

    reward: Literal["addition", "parity", "constant"] = Field(description="what is paid, 0 or 1")
    levels: None = Field(None, description="fixed: rewards are 0 or 1")
    steps: Literal[1] = Field(1, description="fixed")
    num_iterations: Literal[1] = Field(1, description="fixed")
    beta: float = Field(0.0, ge=0, le=0, description="fixed")


class BeyondTheoremSettings(UpdateSettings):
    """`beyond-theorem`: one condition bent at a time."""


# --- training runs ----------------------------------------------------------------------------------------------------


class DynamicSamplingSettings(MethodSettings):
    """`dynamic-sampling`: all prompts of a small task at every step."""

    prompts_per_step: None = Field(None, description="fixed: all prompts, 2^depth - 1")
    max_new_tokens: None = Field(None, description="fixed: the depth")
    steps: int = Field(ge=1, description="optimizer steps")
    depth: int = Field(ge=1, description="tokens of a completion")
    window: int = Field(ge=1, description="steps over which curves are averaged")


class OpenSettings(TrainingSettings):
    """A training run on a fixed set of prompts whose solve rates are measured: addition, or mathematics."""

    eval_every: int = Field(ge=1, description="steps between checkpoints")
    prompts: int = Field(ge=1, description="prompts of the run")
    highs: list[int] | None = Field(None, min_length=1, description="addition: largest operands, in equal parts")
    system_message: str | None = Field(None, description="addition: system message of the prompts")
    dataset: str | None = Field(None, description="hub id or file of mathematics problems")
    reward: Literal["addition", "even-length"] = Field("addition", description="even-length: for a random model")
    reference_samples: int = Field(ge=2, description="completions of a prompt that its solve rate is measured by")
    max_rows: int = Field(ge=1, description="prefixes evaluated at once")
    save_every: Literal[0] = Field(0, description="fixed: what the run looks at is not saved")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        addition = (self.highs is not None, self.system_message is not None)
        if addition != ((False, False) if self.dataset is not None else (True, True)):
            raise ValueError("prompts are either addition (highs and system_message) or mathematics (dataset)")
        return self


class OpenTestSettings(OpenSettings):
    """`open-test`."""

    fresh_samples: int = Field(ge=1, description="further completions of a prompt, divided into groups")


class OpenTestGradientsSettings(OpenSettings):
    """`open-test-gradients`."""

    scored_samples: int = Field(ge=2, description="completions of a prompt whose scores are computed")
    sketch_rank: int = Field(ge=1, description="rank of the sketch of a score's matrices")
    score_batch: int = Field(ge=1, description="scores computed at once")
    group_sizes: list[int] = Field(min_length=1, description="sizes that groups are composed of")


# --- the same completions under many verifiers ------------------------------------------------------------------------


class RelabellingSettings(Settings):
    """`relabelling`."""

    model: str = Field(description="name of the model")
    style: Literal["text", "chat"] = Field(description="prompts as plain text, or in the model's chat template")
    system_message: str | None = Field(None, description="chat: system message of the prompts")
    low: int = Field(ge=0, description="smallest operand")
    high: int = Field(ge=1, description="largest operand")
    prompts: int = Field(ge=1, description="prompts of a seed")
    scored_samples: int = Field(ge=8, description="completions of a prompt whose scores are computed")
    reference_samples: int = Field(ge=0, description="further completions of a prompt, which only count for p")
    max_new_tokens: int = Field(ge=1, description="tokens of a completion at most")
    max_rows: int = Field(ge=1, description="prefixes evaluated at once")
    sketch_rank: int = Field(ge=1, description="rank of the sketch of a score's matrices")
    score_batch: int = Field(ge=1, description="scores computed at once")
    smallest_class: int = Field(
        ge=2, description="scored completions of either class below which a verifier is left out"
    )
    group_sizes: list[int] = Field(min_length=1, description="sizes that groups are composed of")
    group_draws: int = Field(ge=1, description="groups drawn from each half of a prompt's completions")

    @model_validator(mode="after")
    def _chat_has_a_system_message(self) -> Self:
        if (self.style == "chat") != (self.system_message is not None):
            raise ValueError('system_message is set with style = "chat", and only then')
        if max(self.group_sizes) > self.scored_samples // 2:
            raise ValueError("a group needs at most half of scored_samples: the other half makes the prediction")
        return self


# --- forecasts of silent shares ---------------------------------------------------------------------------------------


class SilentForecastSettings(Settings):
    """`silent-forecast`."""

    engine: Literal["tree", "bernoulli-logit"] = Field(description="policies whose solve rates are known exactly")
    logged_size: int = Field(ge=2, description="completions of a prompt in the run whose log is read, G")
    group_sizes: list[int] = Field(min_length=2, description="sizes with a run of their own, the logged one included")
    steps: int = Field(ge=1, description="optimizer steps")
    window: int = Field(ge=1, description="steps of a log that a forecast is made from")
    ahead: list[int] = Field(min_length=1, description="steps ahead, multiples of the window")
    draws: int = Field(ge=10, description="bootstrap draws of the mixture")
    lr: float = Field(gt=0, description="learning rate, or step size of a logit")
    prompts: int | None = Field(None, ge=8, description="bernoulli-logit: prompts of a run")
    groups_logged: int | None = Field(None, ge=1, description="bernoulli-logit: groups of a step that the log holds")
    depth: int | None = Field(None, ge=1, description="tree: tokens of a completion; 2^depth - 1 prompts")
    width: int | None = Field(None, ge=4, description="tree: width of the transformers")

    @model_validator(mode="after")
    def _sizes_and_steps_fit(self) -> Self:
        if self.logged_size not in self.group_sizes:
            raise ValueError("logged_size must be one of group_sizes")
        if any(value % self.window for value in (self.steps, *self.ahead)):
            raise ValueError("steps and ahead must be multiples of window: the truth is looked at there")
        given = [value is not None for value in (self.prompts, self.groups_logged, self.depth, self.width)]
        if given != ([False, False, True, True] if self.engine == "tree" else [True, True, False, False]):
            raise ValueError("a tree has depth and width, Bernoulli-logit prompts have prompts and groups_logged")
        return self
