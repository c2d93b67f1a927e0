"""What a training run is made of, with the values that hold where a profile says nothing; imports no heavy library."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from grpo_replications.shared.models.catalog import EMBEDDED
from grpo_replications.shared.settings import Settings
from grpo_replications.shared.sources import pinned
from grpo_replications.shared.training.trl_names import refuse_known_names

METHOD_OPTIONS = ("alpha", "tau", "mu", "lower", "upper", "eta", "placement", "weight_kl", "rescale", "match")
"""Options of a method (`shared.training.token_weights.token_weighting`); one that a method lacks is refused."""


class UpdateSettings(Settings):
    """How a policy is updated: everything about a training run but its method, its start and its length."""

    checked_by: ClassVar[str | None] = "grpo_replications.shared.training.checks:check_training"

    prompts_per_step: int = Field(4, ge=1, description="groups an optimizer step, over all processes")
    group_size: int = Field(6, ge=2, description="completions of a prompt, G")
    lr: float = Field(1e-6, ge=0, description="learning rate, constant")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="AdamW without weight decay, or plain SGD")
    max_grad_norm: float = Field(1.0, ge=0, description="norm at which the gradient is clipped; 0 does not clip")
    max_new_tokens: int = Field(32, ge=1, description="tokens of a completion at most")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"] = Field(
        "dapo", description="TRL's loss: how terms of tokens are averaged"
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        "group", description="what centered rewards are divided by"
    )
    beta: float = Field(0.0, ge=0, description="coefficient of the KL term (k3 estimator)")
    num_iterations: int = Field(1, ge=1, description="passes over a rollout")
    mini_batches: int = Field(
        1, ge=1, description="optimizer steps of a pass over a rollout, which has so many times prompts_per_step groups"
    )
    max_redraws: int = Field(0, ge=0, description="how often a silent group is drawn again at most")
    redraw: Literal["samples", "prompts"] = Field("prompts", description="what a redraw draws anew")
    gradient_accumulation_steps: int = Field(1, ge=1, description="micro-batches an optimizer step")
    precision: Literal["float32", "bfloat16"] = Field("bfloat16", description="of activations; weights are float32")
    lora_rank: int = Field(0, ge=0, description="rank of the adapter; 0 trains all parameters")
    lora_alpha: int = Field(128, ge=1, description="scale of the adapter, over its rank")
    lora_dropout: float = Field(0.05, ge=0, lt=1, description="dropout of the adapter")
    gradient_checkpointing: bool = Field(False, description="compute activations twice and keep few of them")
    use_vllm: bool = Field(False, description="sample with vLLM")
    tree_sampling: bool = Field(
        False, description="draw rollouts by the tree of their prefixes: faster, other draws of the same distribution"
    )
    share_prefixes: bool = Field(
        False, description="score every distinct prefix once: faster, gradients the same up to rounding"
    )
    vllm_mode: Literal["colocate", "server"] = Field(
        "colocate", description="vLLM in the training processes, or a server at trl.vllm_server_base_url"
    )
    stop_at_box: bool = Field(False, description="mathematics: a completion ends where its first box closes")
    save_every: int = Field(
        0, ge=0, description="optimizer steps from one checkpoint to the next, from which a killed run goes on; 0: none"
    )
    alpha: float | None = Field(None, description="slope of the token weight; None: the method's own, as for all below")
    tau: float | None = Field(None, gt=0, description="temperature of the sharpness-guided weight")
    mu: float | None = Field(None, description="offset of the sharpness-guided weight")
    lower: float | None = Field(None, description="lower bound of the token weight")
    upper: float | None = Field(None, description="upper bound of the token weight")
    eta: float | None = Field(None, ge=0, le=1, description="probability at which Lopti divides tokens")
    placement: Literal["outside", "inside"] | None = Field(
        None, description="of the weight: outside or inside the clip"
    )
    weight_kl: bool | None = Field(None, description="whether the KL term is weighted too")
    rescale: bool | None = Field(None, description="whether weights are rescaled to mean 1")
    match: bool | None = Field(None, description="whether weights take the distribution that the raw logit gives")
    revisions: dict[str, str] = Field(
        default_factory=dict, description="commit by hub id, of models and data sets; what it lacks is taken as it is"
    )
    trl: dict[str, Any] = Field(default_factory=dict, description="further options of trl.GRPOConfig, by TRL's names")

    @field_validator("trl")
    @classmethod
    def _only_further_options(cls, trl: dict[str, Any]) -> dict[str, Any]:
        refuse_known_names(trl)
        return trl

    def pinned(self, name: str) -> str:
        """The name of a model or data set with the commit that `revisions` gives for it."""
        settings = self
        return pinned(name, settings.revisions)

    def method_options(self) -> dict[str, Any]:
        """Options of the method, by name; None where the method's own value holds."""
        settings = self
        return {
            "alpha": settings.alpha,
            "tau": settings.tau,
            "mu": settings.mu,
            "lower": settings.lower,
            "upper": settings.upper,
            "eta": settings.eta,
            "placement": settings.placement,
            "weight_kl": settings.weight_kl,
            "rescale": settings.rescale,
            "match": settings.match,
        }


class MethodSettings(UpdateSettings):
    """One method of a comparison, which decides the start and the length by itself."""

    method: str = Field("grpo", description="token weight, a name that `token_weights.token_weighting` knows")


class TrainingSettings(MethodSettings):
    """One training run."""

    model: str = Field(EMBEDDED, description="embedded, tiny-random, a hub id or a directory")
    steps: int = Field(20, ge=1, description="optimizer steps")
