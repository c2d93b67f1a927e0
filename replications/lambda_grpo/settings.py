"""Settings of every experiment of this replication; a profile sets them, and what it leaves out has the value here."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from grpo_replications.shared.models.settings import BenchmarkSettings
from grpo_replications.shared.settings import Settings
from grpo_replications.shared.training.launching import check_launch
from grpo_replications.shared.training.settings import TrainingSettings


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

    n: int = Field(ge=1, description="tokens of the target's prefix; other paths with it earn r_neg")
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


class TabularSpeedSettings(Settings):
    """`tabular-speed`: steps to the target on a tabular policy, each method at its own fastest learning rate."""

    n: int = Field(ge=1, description="tokens of the target's prefix; other paths with it earn r_neg")
    r_neg: float = Field(description="reward of a wrong path that shares the prefix, row of Table 1")
    method: Literal["grpo", "lambda-grpo", "halving-depth", "mean-depth"] = Field(description="the update")
    optimizer: Literal["sgd", "adam"] = Field(description="with PyTorch's update rule")
    lrs: list[float] = Field(min_length=1, description="learning rates to choose from")
    selection_seeds: int = Field(ge=1, description="seeds on which the rate is chosen")
    threshold: float = Field(gt=0, lt=1, description="probability of the target that a run is to reach")
    group_size: int = Field(ge=2, description="paths sampled a step, G")
    steps: int = Field(ge=1, description="optimizer steps, at which a run is censored")
    depth: int = Field(ge=2, description="of the tree")


class UpdateBiasSettings(Settings):
    """`update-bias`: the mean update at one node whose completions all have the same advantage."""

    p_left: float = Field(gt=0, lt=1, description="probability of the node's left child")
    advantage: float = Field(description="of every completion that passes the node")
    method: Literal["grpo", "lambda-grpo"] = Field(description="the update")
    group_size: int = Field(ge=2, description="completions that pass the node, G")
    groups: int = Field(ge=2, description="groups drawn for a seed")


class TreeTransformerSettings(Settings):
    """A row of Table 1 for one method, on a small transformer a seed."""

    n: int = Field(ge=1, description="tokens of the target's prefix; other paths with it earn r_neg")
    r_neg: float = Field(description="reward of a wrong path that shares the prefix, row of Table 1")
    lr: float = Field(gt=0, description="learning rate, constant")
    steps: int = Field(ge=1, description="optimizer steps")
    last: int = Field(ge=1, description="steps at the end over which the target's probability is averaged")
    depth: int = Field(ge=2, description="of the tree")
    group_size: int = Field(ge=2, description="paths sampled a step, G")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="AdamW without weight decay, or plain SGD")
    max_grad_norm: float = Field(0.0, ge=0, description="norm at which a run's gradient is clipped; 0 does not clip")
    start_left: float = Field(0.5, gt=0, lt=1, description="probability of token L at the start, where head_std is 0")
    head_std: float = Field(0.0, ge=0, description="standard deviation of the head's weights at the start")
    target_rights: int | None = Field(None, ge=0, description="tokens R on the target's path; None: any path")
    width: int = Field(64, ge=2, description="of the transformer")
    layers: int = Field(2, ge=1, description="of the transformer")
    heads: int = Field(4, ge=1, description="of the transformer")
    inner: int = Field(128, ge=1, description="width of its feed-forward layers")


class ManyTable1Settings(TreeTransformerSettings):
    """`many-table1`: all seeds of a cell at once."""

    method: Literal["grpo", "lambda-grpo", "halving-depth", "mean-depth"] = Field(
        description="the update; the last two weigh tokens by depth alone"
    )
    curve_every: int = Field(ge=0, description="steps between two rows of a curve; 0 for no curves")


class ManyTable1TrlSettings(TreeTransformerSettings):
    """`many-table1-trl`: the run of one seed through TRL, held against the simulator's."""

    method: Literal["grpo", "lambda-grpo"] = Field(description="the update")


class Table1PretrainedSettings(Settings):
    """`table1-pretrained`: a row of Table 1 on a pretrained language model, one seed a run."""

    model: str = Field(description='name of the model, or "random-small"; all tokens but L and R are masked')
    n: int = Field(ge=1, description="tokens of the target's prefix; other paths with it earn r_neg")
    r_neg: float = Field(description="reward of a wrong path that shares the prefix, row of Table 1")
    method: Literal["grpo", "lambda-grpo", "halving-depth", "mean-depth"] = Field(
        description="the update; the last two weigh tokens by depth alone"
    )
    lr: float = Field(gt=0, description="learning rate, constant")
    steps: int = Field(ge=1, description="optimizer steps")
    last: int = Field(ge=1, description="steps at the end over which the target's probability is averaged")
    depth: int = Field(ge=2, description="of the tree")
    group_size: int = Field(ge=2, description="paths sampled a step, G")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="AdamW without weight decay, or plain SGD")
    max_grad_norm: float = Field(0.0, ge=0, description="norm at which the gradient is clipped; 0 does not clip")
    settled_probability: float = Field(
        1.0, gt=0, le=1, description="a run ends where one path has at least this probability; 1 for no early end"
    )
    settled_steps: int = Field(1, ge=1, description="steps in a row for which it must have had it")
    curve_every: int = Field(ge=0, description="steps between two rows of a curve; 0 for no curves")


class ManySumsSettings(Settings):
    """`many-sums`: running sums modulo 10, one small transformer a seed, all seeds of a cell at once."""

    method: Literal["grpo", "lambda-grpo", "halving-depth", "mean-depth"] = Field(
        description="the update; the last two weigh tokens by depth alone"
    )
    reward: Literal["right", "trap"] = Field(description="1 for a right answer, or the synthetic tree's rewards")
    prefix_length: int = Field(1, ge=1, description="trap: tokens of the right answer that a wrong one must share")
    r_neg: float = Field(0.0, description="trap: reward of a wrong answer that shares them")
    other_reward: float = Field(0.0, description="trap: reward of any other wrong answer")
    lr: float = Field(gt=0, description="learning rate, constant")
    steps: int = Field(ge=1, description="optimizer steps, at which a run is censored")
    prompts_per_step: int = Field(ge=1, description="groups an optimizer step")
    group_size: int = Field(ge=2, description="completions of a prompt, G")
    look_every: int = Field(ge=1, description="steps from one look at the held-out problems to the next")
    held_out: int = Field(ge=1, description="held-out problems")
    threshold: float = Field(gt=0, lt=1, description="solve rate that a run is to reach")
    curves: bool = Field(description="whether solve rates are given by step")
    max_grad_norm: float = Field(1.0, ge=0, description="norm at which a run's gradient is clipped; 0 does not clip")
    terms: int = Field(ge=1, description="digits that are summed, tokens of an answer")
    width: int = Field(ge=2, description="of the transformer")
    layers: int = Field(ge=1, description="of the transformer")
    heads: int = Field(ge=1, description="of the transformer")
    inner: int = Field(ge=1, description="width of its feed-forward layers")
    start_rate: float = Field(gt=0, lt=1, description="solve rate up to which a model is taught before the run")
    pretrain_lr: float = Field(gt=0, description="learning rate of the teaching")
    pretrain_batch: int = Field(ge=1, description="problems a step of the teaching")
    pretrain_every: int = Field(ge=1, description="steps of the teaching from one look at the solve rate to the next")
    pretrain_max_steps: int = Field(ge=1, description="steps of the teaching at most")


class Table1LanguageModelSettings(TrainingSettings):
    """`table1-lm`: one prompt a step, completions as long as the tree is deep, and no reference policy."""

    n: int = Field(ge=1, description="tokens of the target's prefix; other paths with it earn r_neg")
    r_neg: float = Field(description="reward of a wrong path that shares the prefix, row of Table 1")
    depth: int = Field(ge=1, description="of the tree")
    last: int = Field(ge=1, description="steps at the end over which the target's probability is averaged")
    prompts_per_step: Literal[1] = Field(1, description="fixed: the tree has one prompt")
    max_new_tokens: None = Field(None, description="fixed: the tree's depth")
    beta: float = Field(0.0, ge=0, le=0, description="fixed: a policy over two tokens has no path to rebuild it from")


class Data(TrainingSettings):
    """A training run with its prompts: addition, or mathematics where a `dataset` is set."""

    dataset: str | None = Field(None, description="hub id or file of mathematics problems")
    validation: str | None = Field(
        None, description='benchmark, hub id or file of validation problems, or "held-out": of the dataset itself'
    )
    low: int | None = Field(None, ge=0, description="addition: smallest operand")
    high: int | None = Field(None, ge=0, description="addition: largest operand")
    train_size: int | None = Field(None, ge=1, description="addition: problems to train on")
    validation_size: int | None = Field(None, ge=1, description="problems held out; mathematics: the first so many")
    system_message: str | None = Field(None, description="of the prompts; mathematics has one of its own")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        mathematics = {"dataset": self.dataset, "validation": self.validation}
        addition = {name: getattr(self, name) for name in ("low", "high", "train_size", "validation_size")}
        addition["system_message"] = self.system_message
        wanted, other = (mathematics, addition) if self.dataset is not None else (addition, mathematics)
        if self.dataset is not None:
            other = {
                name: value for name, value in addition.items() if name not in ("validation_size", "system_message")
            }
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
    save_every: Literal[0] = Field(0, description="fixed: TRL's own trainers resume no run exactly")


class Table2Settings(TrainingSettings, BenchmarkSettings):
    """`table2`: one model, trained by one method or not at all, its best checkpoint on the five benchmarks."""

    method: str = Field("grpo", description='as in any training run, or "base", which trains nothing')
    dataset: str = Field(description="hub id or file of the training problems")
    validation_size: int = Field(ge=1, description="problems of the dataset that are held out to choose a checkpoint")
    eval_every: int = Field(ge=1, description="optimizer steps from one look at the held-out problems to the next")
    system_message: str | None = Field(None, description="of the prompts; None: the task's own")
    processes: int = Field(ge=1, description="processes of `accelerate launch`, one a GPU")
    launch: Literal["ddp", "fsdp2", "deepspeed-zero3"] = Field(
        "ddp", description="how they share the model: each has the whole of it, or a part"
    )

    def check(self) -> None:
        """As any training run, but for the base model, which has no method."""
        if self.method != "base":
            super().check()
            check_launch(self, self.launch, self.processes)


class WeightsCostSettings(Settings):
    """`weights-cost`: time to compute the weights, without a model."""

    group_size: int = Field(ge=2, description="completions of a group, G")
    tokens: int = Field(ge=8, description="tokens of a completion")
    groups: int = Field(ge=1, description="groups that are timed")


class NoSettings(Settings):
    """`flaw` and `table2-intervals` compute from what is printed; nothing about them can be set."""
