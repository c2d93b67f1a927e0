"""What a run of GRPO costs before it starts: tokens, GPU-seconds, peak memory of a GPU, and disk. Arithmetic only.

All figures rest on `Assumptions`, which are to be shown with them. Memory is counted by what it holds, so that the
largest part can be named; time is that of sampling (bound by memory bandwidth, or by the launch of kernels) and of the
training passes (bound by arithmetic, at a share of the GPU's peak). Expect a factor of two in time, a fifth in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from grpo_replications.shared.planning.gpus import Gpu
from grpo_replications.shared.planning.model_shapes import ModelShape


@dataclass(frozen=True)
class Assumptions:
    """What is not known before a run. Names and values are printed with every estimate."""

    length_share: float = 0.5  # mean length of a completion, as a share of the limit
    prompt_tokens: int = 250  # of a prompt
    flops_share: float = 0.3  # of the GPU's peak that training passes reach (model FLOPs utilisation)
    bandwidth_share: float = 0.5  # of the GPU's bandwidth that sampling reaches
    layer_seconds: float = 1e-3  # of one layer in one step of decoding with transformers (kernel launches)
    vllm_layer_seconds: float = 1e-4  # the same with vLLM, which replays recorded kernels
    logit_copies: int = 3  # float32 copies of a micro-batch's logits: as they are, over temperature, their gradient
    context_bytes: float = 2e9  # of CUDA and the libraries
    slack: float = 1.05  # fragmentation, on everything but vLLM's share
    text_bytes: float = 11.0  # a token in the group log: its text and its id

    def lines(self) -> list[str]:
        """The assumptions, a sentence each."""
        return [
            f"a completion has {self.length_share:.0%} of its largest length on average, a prompt {self.prompt_tokens} "
            "tokens; the longest of a batch has the largest length",
            f"training passes reach {self.flops_share:.0%} of the GPU's peak (model FLOPs utilisation); a forward pass "
            "takes 2 operations a parameter and token, a backward pass twice that, checkpointed activations one more "
            "forward pass",
            f"sampling reads all weights once a step at {self.bandwidth_share:.0%} of the GPU's bandwidth, and a step "
            f"takes {self.layer_seconds * 1e3:g} ms a layer with transformers, {self.vllm_layer_seconds * 1e3:g} ms "
            "with vLLM at least",
            "weights are float32: 4 bytes a parameter, and for trained ones 4 for the gradient and 8 for Adam (none "
            "for SGD), 2 for a bfloat16 copy; 4 for the reference model with a KL term, unless an adapter is trained",
            f"logits of a micro-batch are held {self.logit_copies} times in float32; CUDA takes "
            f"{self.context_bytes / 1e9:g} GB, fragmentation {self.slack - 1:.0%}",
            "a job runs in whole on each of its GPUs: nothing is sharded",
        ]


@dataclass(frozen=True)
class Decoding:
    """`batches` batches of `batch` completions of at most `tokens` tokens each, decoded with transformers or vLLM."""

    batches: float
    batch: int
    tokens: int
    vllm: bool = False


@dataclass(frozen=True)
class Workload:
    """One job: a training run (`steps` may be 0), and what it decodes beside it."""

    shape: ModelShape
    steps: int
    completions: int  # an optimizer step, over all processes
    max_tokens: int
    passes_over_rollout: int = 1  # updates that each sampled completion takes part in
    processes: int = 1
    micro_batch: int = 1  # completions of a process at once
    precision: str = "bfloat16"
    adapter_rank: int = 0
    adam: bool = True
    reference: bool = False
    old_logps: bool = False  # whether log-probabilities are computed once more after sampling
    checkpointing: bool = False
    vllm_share: float = 0.0  # of the GPU's memory; 0: sampled with transformers
    mini_batches: int = 1
    saves: bool = False
    keeps_best: bool = False
    runs: int = 1  # training runs of the job, one after the other
    evaluations: tuple[Decoding, ...] = ()

    @property
    def number_bytes(self) -> int:
        """Bytes of an activation."""
        return 2 if self.precision == "bfloat16" else 4

    @property
    def trained(self) -> int:
        """Parameters that are trained."""
        return self.shape.adapter_parameters(self.adapter_rank) if self.adapter_rank else self.shape.parameters

    @property
    def sampled(self) -> int:
        """Completions that a job samples in training."""
        return self.runs * self.steps * self.completions // self.passes_over_rollout


@dataclass(frozen=True)
class Memory:
    """Peak of one GPU, in bytes by what it holds; `problem` says what cannot be, whatever else fits."""

    parts: dict[str, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def memory(work: Workload, gpu: Gpu, assume: Assumptions) -> Memory:
    """Peak memory of one GPU. Training and decoding do not happen at once: the larger of the two counts."""
    parameters = work.shape.parameters
    kept: dict[str, float] = {}
    adapters = work.trained if work.adapter_rank else 0
    kept["weights"] = 4.0 * (parameters + adapters)
    if work.steps:
        kept["gradients"] = 4.0 * work.trained
        kept["Adam"] = 8.0 * work.trained if work.adam else 0.0
        kept["reference model"] = 4.0 * parameters if work.reference and not work.adapter_rank else 0.0
        kept["bfloat16 copies"] = 2.0 * work.trained if work.precision == "bfloat16" else 0.0
    training = _training_bytes(work, assume)
    decoding = _decoding_bytes(work, assume)
    name, value = max(
        ("activations and logits of a micro-batch", training), ("cache of decoding", decoding), key=lambda one: one[1]
    )
    kept[name] = value
    kept = {name: assume.slack * value for name, value in kept.items() if value}
    kept["CUDA"] = assume.context_bytes
    problem = ""
    if work.steps and work.vllm_share:
        share = work.vllm_share * gpu.memory
        kept["vLLM's share"] = share
        needed = 2.0 * parameters + work.shape.cache_bytes(2) * (work.max_tokens + assume.prompt_tokens) + 1e9
        if needed > share:
            problem = (
                f"vLLM needs {needed / 1e9:.0f} GB for the weights and one completion, and its share "
                f"({work.vllm_share:.0%}) is {share / 1e9:.0f} GB"
            )
    return Memory(kept, problem)


def _training_bytes(work: Workload, assume: Assumptions) -> float:
    """Activations and logits of one micro-batch at its largest length."""
    if not work.steps:
        return 0.0
    shape, number = work.shape, work.number_bytes
    tokens = work.micro_batch * (work.max_tokens + assume.prompt_tokens)
    of_layer = tokens * number * (8.0 * shape.width + 3.0 * shape.inner)
    stored = shape.layers * tokens * number * shape.width + of_layer if work.checkpointing else shape.layers * of_layer
    logits = 4.0 * assume.logit_copies * work.micro_batch * work.max_tokens * shape.vocabulary
    return stored + logits


def _decoding_bytes(work: Workload, assume: Assumptions) -> float:
    """Keys and values of the largest batch that is decoded with transformers."""
    decoded = [(one.batch, one.tokens) for one in work.evaluations if not one.vllm]
    if work.steps and not work.vllm_share:
        decoded.append((_rollout(work), work.max_tokens))
    cache = work.shape.cache_bytes(work.number_bytes)
    return max((batch * (tokens + assume.prompt_tokens) * cache for batch, tokens in decoded), default=0.0)


def _rollout(work: Workload) -> int:
    """Completions that one process samples at once."""
    return math.ceil(work.completions * work.mini_batches / work.processes)


@dataclass(frozen=True)
class Seconds:
    """Wall seconds of one job by what it does; times its processes, GPU-seconds."""

    sampling: float
    training: float
    evaluation: float

    @property
    def total(self) -> float:
        return self.sampling + self.training + self.evaluation


def seconds(work: Workload, gpu: Gpu, assume: Assumptions) -> Seconds:
    """Wall seconds of one job."""
    mean = assume.length_share * work.max_tokens
    rollouts = work.runs * work.steps / (work.passes_over_rollout * work.mini_batches)
    if work.vllm_share:
        decode = _decoding_seconds(work, gpu, assume, _rollout(work), work.max_tokens, mean, vllm=True)
    else:
        decode = _decoding_seconds(work, gpu, assume, _rollout(work), work.max_tokens, mean, vllm=False)
    sampling = rollouts * decode if work.steps else 0.0
    evaluation = sum(
        one.batches * _decoding_seconds(work, gpu, assume, one.batch, one.tokens, one.tokens, vllm=one.vllm)
        for one in work.evaluations
    )
    tokens = work.completions / work.processes * (mean + assume.prompt_tokens)
    forward = work.shape.forward_flops((mean + assume.prompt_tokens) / 2)
    backward = 1.0 if work.adapter_rank else 2.0  # gradients by activations only, where the weights are frozen
    a_pass = 1.0 + backward + (1.0 if work.checkpointing else 0.0)
    extra = (float(work.reference) + float(work.old_logps)) / work.passes_over_rollout
    flops = work.runs * work.steps * tokens * forward * (a_pass + extra)
    return Seconds(sampling, flops / (assume.flops_share * gpu.flops(work.precision)), evaluation)


def _decoding_seconds(
    work: Workload, gpu: Gpu, assume: Assumptions, batch: int, longest: float, mean: float, vllm: bool
) -> float:
    """Seconds to decode a batch to its longest completion: a step reads the weights and the cache once.

    A step is bound by what it reads, by its arithmetic or by the launch of its kernels, whichever takes longest.
    """
    number = 2 if vllm else work.number_bytes
    weights = (2.0 if vllm else 4.0) * work.shape.parameters
    cache = batch * work.shape.cache_bytes(number) * (mean / 2 + assume.prompt_tokens)
    read = (weights + cache) / (assume.bandwidth_share * gpu.bandwidth)
    floor = work.shape.layers * (assume.vllm_layer_seconds if vllm else assume.layer_seconds)
    active = batch * mean / longest  # completions that have not ended, on average
    compute = active * work.shape.forward_flops(mean / 2) / (assume.flops_share * gpu.flops(work.precision))
    return longest * max(read, floor, compute)


@dataclass(frozen=True)
class Disk:
    """Bytes of one job: checkpoints while it runs, and logs that stay."""

    running: float
    kept: float


def disk(work: Workload, assume: Assumptions) -> Disk:
    """Two checkpoints (trained weights and Adam's two moments) of each run of the job, the best weights, and logs.

    Runs of a job follow one another, but checkpoints of all of them stay until the job is done.
    """
    checkpoint = 4.0 * work.trained * (3 if work.adam else 1)
    running = work.runs * 2 * checkpoint if work.saves else 0.0
    running += 4.0 * work.trained if work.keeps_best else 0.0
    if any(one.vllm for one in work.evaluations):
        running += work.number_bytes * work.shape.parameters  # the weights that vLLM is given
    log = work.sampled * assume.length_share * work.max_tokens * assume.text_bytes
    return Disk(running, log)
