"""Settings of every experiment of this replication; a profile sets them, and what it leaves out has the value here."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shared.models.settings import BenchmarkSettings
from shared.settings import Settings
from shared.training.settings import TrainingSettings


class TheoremSettings(Settings):
    """`theorem`; all but `source` and `groups` concern rollouts only."""

    source: Literal["random", "rollouts"] = Field(description="random groups, or groups of a language model")
    groups: int = Field(ge=1, description="groups of a seed")
    model: str = Field(description="name of the model that rollouts are sampled from")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    max_new_tokens: int = Field(ge=1, description="tokens of a completion at most")
    system_message: str = Field(description="of the addition prompts")


class Table1Settings(Settings):
    """A row of Table 1 for one method and one optimizer, on a tabular policy."""

    n: int = Field(
        ge=1, description="length of the target's prefix on which every other path earns r_neg; row of Table 1"
    )
    r_neg: float = Field(description="reward of a wrong path that shares the prefix, row of Table 1")
    method: Literal["grpo", "lambda-grpo", "lambda-grpo-matched", "grpo-matched"] = Field(description="the update")
    optimizer: Literal["sgd", "adam"] = Field(description="with PyTorch's update rule")
    group_size: int = Field(ge=2, description="paths sampled a step, G")
    steps: int = Field(ge=1, description="optimizer steps")
    last: int = Field(ge=1, description="steps at the end over which the target's frequency is averaged")
    depth: int = Field(ge=1, description="of the tree")
    ddof: Literal[0, 1] = Field(description="1 for the sample standard deviation of rewards, 0 for the population's")
    eps: float = Field(ge=0, description="added to the standard deviation")
    beta: float = Field(ge=0, description="coefficient of the KL term")


class Table1TabularSettings(Table1Settings):
    """One cell of the map over optimizer and learning rate."""

    lr: float = Field(gt=0, description="learning rate")


class Table1BestSettings(Table1Settings):
    """Each method at its own best learning rate."""

    lrs: list[float] = Field(min_length=1, description="learning rates to choose from, increasing")
    selection_seeds: int = Field(ge=1, description="seeds on which the rate is chosen")

    @model_validator(mode="after")
    def _rates_increase(self) -> Self:
        if self.lrs != sorted(set(self.lrs)):
            raise ValueError(f"lrs must be increasing learning rates, not {self.lrs}")
        return self


class Table1LanguageModelSettings(TrainingSettings):
    """`table1-lm`: one prompt a step, completions as long as the tree is deep, and no reference policy."""

    n: int = Field(
        ge=1, description="length of the target's prefix on which every other path earns r_neg; row of Table 1"
    )
    r_neg: float = Field(description="reward of a wrong path that shares the prefix, row of Table 1")
    depth: int = Field(ge=1, description="of the tree")
    last: int = Field(ge=1, description="steps at the end over which the target's probability is averaged")
    prompts_per_step: Literal[1] = Field(1, description="fixed: the tree has one prompt")
    max_new_tokens: None = Field(None, description="fixed: the tree's depth")
    beta: float = Field(0.0, ge=0, le=0, description="fixed: a policy over two tokens has no path to rebuild it from")


class Data(TrainingSettings):
    """A training run with its prompts: addition, or mathematics where a `dataset` is set."""

    dataset: str | None = Field(None, description="hub id or file of mathematics problems")
    validation: str | None = Field(None, description="benchmark, hub id or file of validation problems")
    low: int | None = Field(None, ge=0, description="addition: smallest operand")
    high: int | None = Field(None, ge=0, description="addition: largest operand")
    train_size: int | None = Field(None, ge=1, description="addition: problems to train on")
    validation_size: int | None = Field(None, ge=1, description="addition: problems held out")
    system_message: str | None = Field(None, description="addition: system message of the prompts")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        mathematics = {"dataset": self.dataset, "validation": self.validation}
        addition = {name: getattr(self, name) for name in ("low", "high", "train_size", "validation_size")}
        addition["system_message"] = self.system_message
        wanted, other = (mathematics, addition) if self.dataset is not None else (addition, mathematics)
        missing = [name for name, value in wanted.items() if value is None]
        surplus = [name for name, value in other.items() if value is not None]
        if missing or surplus:
            raise ValueError(
                f"prompts are either addition ({', '.join(addition)}) or mathematics ({', '.join(mathematics)}); "
                f"missing: {', '.join(missing) or 'none'}; not of the same kind: {', '.join(surplus) or 'none'}"
            )
        return self


class OverlapSettings(Data):
    """`overlap`: one training run whose prefix trees are counted."""


class LearningSettings(Data):
    """`training`: one method from the model's start."""

    eval_every: int = Field(ge=1, description="steps from one look at the validation problems to the next")
    eval_batch_size: int = Field(ge=1, description="validation problems decoded at once")


class OverheadSettings(Data):
    """`overhead`: lambda-GRPO at learning rate 0, so that all trainers sample alike."""

    method: Literal["lambda-grpo"] = Field("lambda-grpo", description="fixed")
    lr: float = Field(0.0, ge=0, le=0, description="fixed")


class Table2Settings(TrainingSettings, BenchmarkSettings):
    """`table2`: one model, trained by one method or not at all, on the five benchmarks."""

    method: str = Field("grpo", description='as in any training run, or "base", which trains nothing')
    dataset: str = Field(description="hub id or file of the training problems")
    processes: int = Field(ge=1, description="processes of `accelerate launch`, one a GPU")

    def check(self) -> None:
        """As any training run, but for the base model, which has no method."""
        if self.method != "base":
            super().check()


class ManySettings(Settings):
    """Many small transformers at once, all seeds of a cell: the trainer's objective, and the sizes of a model."""

    method: str = Field(description='token weight, or "halving-depth" and "mean-depth", weights by depth alone')
    lr: float = Field(gt=0, description="learning rate")
    loss_type: Literal["dapo", "bnpo", "grpo", "dr_grpo"] = Field("dapo", description="how terms are averaged")
    scale_rewards: Literal["group", "none"] = Field("group", description="divisor of centered rewards")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    epsilon: float = Field(0.2, gt=0, description="how far a ratio may leave 1 before it is clipped")
    beta: float = Field(0.0, ge=0, description="coefficient of the KL term")
    num_iterations: int = Field(1, ge=1, description="passes over a rollout")
    max_grad_norm: float = Field(1.0, ge=0, description="norm at which a run's gradient is clipped; 0 does not clip")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="AdamW without weight decay, or plain SGD")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    steps: int = Field(ge=1, description="rollouts")
    width: int = Field(64, ge=2, description="hidden units")
    layers: int = Field(2, ge=1, description="layers")
    heads: int = Field(4, ge=1, description="attention heads; twice their number divides the width")
    inner: int = Field(128, ge=1, description="units of the inner layers")


class ManyTreeSettings(ManySettings):
    """`many-table1-trl`, and what `many-table1` shares with it: a row of Table 1."""

    n: int = Field(
        ge=1, description="length of the target's prefix on which every other path earns r_neg; row of Table 1"
    )
    r_neg: float = Field(description="reward of a wrong path that shares the prefix, row of Table 1")
    depth: int = Field(ge=2, description="of the tree")
    last: int = Field(ge=1, description="steps at the end over which the target's probability is averaged")
    start_left: float = Field(0.5, gt=0, lt=1, description="probability of L at every node before training")
    head_std: float = Field(0.0, ge=0, description="scale of the head's random initial weights")
    target_rights: int | None = Field(None, ge=0, description="targets have so many tokens R; None: any")


class ManyTable1Settings(ManyTreeSettings):
    """`many-table1`."""

    curve_every: int = Field(ge=0, description="steps between two rows of a curve; 0 for no curves")


class ManySumsSettings(ManySettings):
    """`many-sums`: running sums modulo 10."""

    terms: int = Field(ge=1, description="digits of an answer")
    start_rate: float = Field(gt=0, lt=1, description="solve rate at which teaching ends")
    pretrain_lr: float = Field(gt=0, description="learning rate of the teaching (Adam)")
    pretrain_batch: int = Field(ge=1, description="problems a step of the teaching")
    pretrain_every: int = Field(ge=1, description="steps of the teaching between two looks")
    pretrain_max_steps: int = Field(ge=0, description="steps after which teaching counts as failed")
    prompts_per_step: int = Field(ge=1, description="groups a rollout")
    look_every: int = Field(ge=1, description="rollouts between two looks at the solve rate")
    held_out: int = Field(ge=1, description="held-out problems")
    threshold: float = Field(gt=0, lt=1, description="solve rate to reach")
    curves: bool = Field(description="whether solve rates by step are kept")
    reward: Literal["right", "trap"] = Field(description="1 for a right answer, or that of the paper's tree")
    prefix_length: int | None = Field(None, ge=1, description="trap: tokens of the answer that a wrong one shares")
    r_neg: float | None = Field(None, description="trap: reward of such an answer")
    other_reward: float | None = Field(None, description="trap: reward of any other wrong answer")

    @model_validator(mode="after")
    def _the_trap_is_whole(self) -> Self:
        given = {self.prefix_length is not None, self.r_neg is not None, self.other_reward is not None}
        if given != {self.reward == "trap"}:
            raise ValueError('prefix_length, r_neg and other_reward are set with reward = "trap", and only then')
        return self


class NoSettings(Settings):
    """`table2-intervals` counts what is printed; nothing about it can be set."""
