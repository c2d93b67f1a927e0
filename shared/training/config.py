"""Settings of the trainer beyond TRL's, and what a model card says of a method.

`TokenWeightedGRPOConfig` holds what `TokenWeightedGRPOTrainer` takes beside TRL's arguments, for YAML files and the
command line: `TrlParser((ScriptArguments, TokenWeightedGRPOConfig))` reads both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, ClassVar, NamedTuple

from trl import GRPOConfig

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.theory.weighting import RolloutWeight, TokenWeight, Weighting
from grpo_replications.shared.training.token_weights import token_weighting


@dataclass
class TokenWeightedGRPOConfig(GRPOConfig):
    """TRL's GRPOConfig and the options of a method; every field can stand in a YAML file or on the command line.

    An option is given here or to the trainer, not to both. `token_weight` is a name only: a function of your own, or a
    `Weighting`, goes to the trainer. Raises ReplicationError for options that the method does not have.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*GRPOConfig._VALID_DICT_FIELDS, "token_weight_options"]

    token_weight: str | None = field(default=None, metadata={"help": "Method's name, such as lambda-grpo*sharpness."})
    token_weight_options: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Options of the method, such as {tau: 5.0}; those of `token_weighting`."}
    )
    group_log: str | None = field(default=None, metadata={"help": "File for the log of groups, one JSON line each."})
    success_reward: float = field(default=1.0, metadata={"help": "Silent groups from this reward on are all right."})
    log_token_ids: bool = field(default=True, metadata={"help": "Whether the group log holds token ids."})
    max_redraws: int = field(default=0, metadata={"help": "How often a silent group is redrawn at most."})
    redraw: str | None = field(default=None, metadata={"help": "Redraw new prompts, or samples of the same prompt."})
    tree_sampling: bool = field(default=False, metadata={"help": "Draw rollouts by the tree of their prefixes."})
    share_prefixes: bool = field(default=False, metadata={"help": "Score every distinct prefix of a group once."})

    def weighting(self) -> Weighting | None:
        """The method with its options; None for plain GRPO."""
        if self.token_weight is None:
            if self.token_weight_options:
                raise ReplicationError("token_weight_options are given without a token_weight.")
            return None
        if not isinstance(self.token_weight, str):
            raise ReplicationError(f"token_weight is a method's name, not {self.token_weight!r}.")
        try:
            return token_weighting(self.token_weight, **(self.token_weight_options or {}))
        except (KeyError, ValueError, TypeError) as error:  # TypeError: a text where an option is a number
            raise ReplicationError(f"token_weight: {error.args[0]}.") from error


class Options(NamedTuple):
    """What a trainer uses, from its arguments or from a TokenWeightedGRPOConfig; see the trainer for each."""

    token_weight: str | TokenWeight | Weighting | None
    group_log: Any
    success_reward: float
    log_token_ids: bool
    max_redraws: int
    redraw: str
    tree_sampling: bool
    share_prefixes: bool


def options(config: GRPOConfig, given: dict[str, Any], defaults: dict[str, Any]) -> Options:
    """Merge what was `given` to a trainer (None: not given) with its config; ReplicationError where both say it."""
    merged = {}
    for name, default in defaults.items():
        value = default
        if isinstance(config, TokenWeightedGRPOConfig):
            inside = config.weighting() if name == "token_weight" else getattr(config, name)
            value = default if inside is None else inside
            if given[name] is not None and value != default:
                raise ReplicationError(f"{name} is given to the trainer and in its config; leave one of them out.")
        merged[name] = value if given[name] is None else given[name]
    return Options(**merged)


def described(weighting: Weighting | None) -> Any:
    """A weighting as JSON: what a checkpoint keeps, and what a resumed run must have too."""
    if weighting is None:
        return None
    factors = []
    for factor in weighting.factors:
        if isinstance(factor, RolloutWeight):
            function = factor.function
            name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
            factors.append({"kind": "RolloutWeight", "function": name, "placement": str(factor.placement)})
        else:
            values = asdict(factor) if is_dataclass(factor) else {}
            factors.append({"kind": type(factor).__name__, **{key: _plain(value) for key, value in values.items()}})
    return {
        "factors": factors,
        "rescale": weighting.rescale,
        "isolation": weighting.isolation,
        "top_entropy_quantile": weighting.top_entropy_quantile,
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)


class Source(NamedTuple):
    """A method as a model card names it."""

    name: str
    title: str
    arxiv: str
    tag: str


LAMBDA = Source("lambda-GRPO", "GRPO is Secretly a Process Reward Model", "2509.21154", "lambda-grpo")
SHARPNESS = Source(
    "GRPO-SG",
    "Sharpness-Guided Group Relative Policy Optimization via Probability Shaping",
    "2511.00066",
    "grpo-sg",
)
LOW_PROBABILITY = "Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs"
REWEIGHTING = Source("GRPO with Advantage Reweighting", LOW_PROBABILITY, "2505.12929", "advantage-reweighting")
LOPTI = Source("GRPO with Lopti", LOW_PROBABILITY, "2505.12929", "lopti")
TOP_ENTROPY = Source(
    "GRPO on the 20 % of tokens with most entropy",
    "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM Reasoning",
    "2506.01939",
    "top-entropy",
)
REDRAWS = Source(
    "GRPO with dynamic sampling",
    "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    "2503.14476",
    "dapo",
)


def sources(weighting: Weighting | None, max_redraws: int) -> list[Source]:
    """The methods, other than GRPO, that a run used, in the order in which a model card names them."""
    found: list[Source] = []
    if weighting is not None:
        kinds = {"Sharpness": SHARPNESS, "AdvantageReweighting": REWEIGHTING}
        for factor in weighting.factors:
            own = isinstance(factor, RolloutWeight) and factor.function.__name__ != "process_set_weight"
            if not own:
                found.append(kinds.get(type(factor).__name__, LAMBDA))
        found += [LOPTI] if weighting.isolation is not None else []
        found += [TOP_ENTROPY] if weighting.top_entropy_quantile is not None else []
    return found + ([REDRAWS] if max_redraws else [])
