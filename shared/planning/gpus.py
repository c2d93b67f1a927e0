"""GPUs by name: memory, arithmetic and bandwidth, from their makers' data sheets (dense, without sparsity)."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_replications.shared.errors import ReplicationError


@dataclass(frozen=True)
class Gpu:
    """`memory` in bytes; `bfloat16` and `float32` in operations a second; `bandwidth` in bytes a second."""

    name: str
    memory: float
    bfloat16: float
    float32: float
    bandwidth: float

    def flops(self, precision: str) -> float:
        """Operations a second of matrix products in a precision; float32 without tensor cores, PyTorch's default."""
        return self.bfloat16 if precision == "bfloat16" else self.float32


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("rtx4090", 24e9, 165e12, 82e12, 1.01e12),
        Gpu("l40s", 48e9, 362e12, 91e12, 0.86e12),
        Gpu("a100-40gb", 40e9, 312e12, 19.5e12, 1.56e12),
        Gpu("a100", 80e9, 312e12, 19.5e12, 2.04e12),
        Gpu("h100", 80e9, 989e12, 67e12, 3.35e12),
        Gpu("h200", 141e9, 989e12, 67e12, 4.8e12),
        Gpu("b200", 180e9, 2250e12, 75e12, 7.7e12),
    )
}


def gpu_called(name: str) -> Gpu:
    """The GPU of a name, in any spelling of letters; ReplicationError lists the names."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        raise ReplicationError(f"There is no GPU {name!r} in the list; it has: {', '.join(GPUS)}.")
    return gpu


def gpu_like(found: str, memory: float) -> Gpu:
    """The GPU of the list whose name is part of what the driver calls one, with the memory that it really has.

    One that is not in the list counts as the GPU of the list with the largest memory that it has too, or the smallest.
    """
    plain = found.lower().replace(" ", "").replace("-", "")
    named = [gpu for gpu in GPUS.values() if gpu.name.split("-")[0] in plain]
    close = [gpu for gpu in named or GPUS.values() if gpu.memory <= 1.1 * memory]
    base = max(close, key=lambda gpu: gpu.memory) if close else min(GPUS.values(), key=lambda gpu: gpu.memory)
    return Gpu(found, memory, base.bfloat16, base.float32, base.bandwidth)
