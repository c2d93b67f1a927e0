"""Sampling by vLLM: whether it can be had, asked before a model is loaded, and what TRL then corrects, in words.

vLLM samples with probabilities of its own, which differ from the policy's by the rounding of its kernels. TRL asks it
for the log-probabilities of the tokens it drew and multiplies each term of the loss by the ratio of the policy's
probability to vLLM's, truncated or masked (`vllm_importance_sampling_mode`). It does so in both modes: "colocate", vLLM
in the training processes on the same GPUs, and "server", a server on other GPUs that gets the weights at every rollout.
"""

from __future__ import annotations

import importlib.util
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from trl import GRPOConfig

from grpo_replications.shared.errors import ReplicationError

_SERVE = (
    "CUDA_VISIBLE_DEVICES=7 VLLM_SERVER_DEV_MODE=1 vllm serve {model} --port {port} "
    '--weight-transfer-config \'{{"backend": "nccl"}}\' --logprobs-mode processed_logprobs --max-logprobs -1'
)
_PATIENCE = 10.0
"""Seconds to wait for an answer of a server that should be there."""


def sampling_in_words(config: GRPOConfig) -> str:
    """What samples, and what TRL does about the difference between its probabilities and the policy's."""
    if not config.use_vllm:
        return "transformers, from the policy itself; nothing to correct"
    engine = f"vLLM ({config.vllm_mode})"
    if not config.vllm_importance_sampling_correction:
        return f"{engine}; no correction for its own probabilities"
    unit, _, kind = config.vllm_importance_sampling_mode.partition("_")
    what = "completion" if unit == "sequence" else "token"
    low, high = getattr(config, "vllm_importance_sampling_clip_min", None), config.vllm_importance_sampling_clip_max
    bounds = f"[{0 if low is None else low:g}, {'infinity' if high is None else format(high, 'g')}]"
    done = "is left out where the ratio lies outside" if kind == "mask" else "has its ratio truncated to"
    return f"{engine}; terms times the ratio of the policy's probability to vLLM's, a {what} {done} {bounds}"


def check_vllm(config: GRPOConfig, model: str) -> None:
    """Raise ReplicationError where vLLM cannot sample for this run: not installed, or no server that fits.

    `model`: name of the policy. A server must have the development endpoints through which TRL sends weights, and must
    report log-probabilities after the temperature: of the raw ones the correction would be wrong.
    """
    if not config.use_vllm:
        return
    if importlib.util.find_spec("vllm") is None:
        raise ReplicationError(
            "use_vllm = true, but vLLM is not installed: pip install 'trl[vllm]' (a GPU is needed), or set "
            "use_vllm = false to sample with transformers."
        )
    if config.vllm_mode == "server":
        _check_server(config, model)


def server_address(config: GRPOConfig) -> str:
    """Where the server of a run is."""
    return config.vllm_server_base_url or f"http://{config.vllm_server_host}:{config.vllm_server_port}"


def _check_server(config: GRPOConfig, model: str) -> None:
    address = server_address(config)
    port = urllib.parse.urlsplit(address).port or 8000
    start = f"Start it on GPUs of its own, one server a run: {_SERVE.format(model=model, port=port)}"
    try:
        served = [one["id"] for one in _asked(f"{address}/v1/models")["data"]]
        resolved = _asked(f"{address}/server_info?config_format=json")
        resolved = resolved.get("vllm_config", resolved)
        mode = resolved["model_config"]["logprobs_mode"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReplicationError(
            f"No vLLM server that training can use answers at {address} ({error}). {start}"
        ) from None
    if model not in served:
        raise ReplicationError(f"The vLLM server at {address} serves {', '.join(served)}, not {model}. {start}")
    if config.vllm_importance_sampling_correction and mode != "processed_logprobs":
        raise ReplicationError(
            f"The vLLM server at {address} reports log-probabilities of the kind {mode}, of which the correction would "
            f"be wrong. {start}"
        )


def _asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
        return json.load(answer)
