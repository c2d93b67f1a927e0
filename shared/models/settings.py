"""Settings of what the models package makes and measures: the small transformer's start, and benchmarks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo_replications.shared.settings import Settings


class SmallStart(Settings):
    """The small transformer that can half add, and its problems; the same settings and seed give the same model.

    Operands are 0 to 49 (some 2,000 ordered pairs beside those held out), longer ones 100 to 149. The answers of 800 of
    the 1,500 training problems are taught, until half of a probe is solved.
    """

    low: int = Field(0, ge=0, description="smallest operand")
    high: int = Field(49, ge=0, description="largest operand")
    train_size: int = Field(1500, ge=1, description="problems to train on")
    validation_size: int = Field(256, ge=1, description="problems held out, of each kind")
    longer_low: int = Field(100, ge=0, description="smallest operand of the longer problems")
    longer_high: int = Field(149, ge=0, description="largest operand of the longer problems")
    width: int = Field(64, ge=1, description="hidden units")
    layers: int = Field(2, ge=1, description="layers")
    pretrain_size: int = Field(800, ge=1, description="training problems whose answers are taught first")
    pretrain_longer: int = Field(400, ge=1, description="longer problems whose answers are taught first")
    pretrain_longer_share: float = Field(0.2, ge=0, le=1, description="their share of a batch")
    pretrain_accuracy: float = Field(0.5, ge=0, le=1, description="share of the probe solved at which teaching ends")
    pretrain_lr: float = Field(3e-3, gt=0, description="learning rate of the teaching (AdamW)")
    pretrain_batch: int = Field(128, ge=1, description="problems a step of the teaching")
    pretrain_max_steps: int = Field(3000, ge=0, description="steps after which teaching counts as failed")


class BenchmarkSettings(Settings):
    """How a model is measured on benchmarks."""

    benchmarks: list[str] = Field(
        min_length=1, description="names of `shared.tasks.math.BENCHMARKS`, each optionally name=path-or-hub-id"
    )
    eval_batch_size: int = Field(ge=1, description="completions decoded at once")
    eval_max_new_tokens: int = Field(ge=1, description="tokens of a completion at most")
    eval_samples: int = Field(ge=1, description="completions a problem")
    eval_temperature: float = Field(ge=0, description="sampling temperature; 0 decodes greedily")
    eval_engine: Literal["transformers", "vllm"] = Field("transformers", description="what decodes: see `vllm_engine`")
