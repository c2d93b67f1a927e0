"""Experiment `token-gradients`: how large the gradient of one token's log-probability is, and what weights do to it.

With respect to the logits of its position, the gradient of log pi(o) is the unit vector of o minus pi, so that its
norm is sqrt((1 - pi_o)^2 + sum_{v != o} pi_v^2), which lies between 1 - pi_o and sqrt(2) (1 - pi_o); a token weight w
scales all three (Le, Ngo Van & Le, arXiv:2511.00066v4, claim on token gradients). This is exact and is checked on a
model's own logits in float64 against automatic differentiation, the weights going through the gate that the trainer
uses. Formulas that are wrong on purpose (no square root term, an upper bound without sqrt(2), a weight left out) must
be noticed.

For hidden states and parameters the paper has bounds with constants that it does not print. There the norms themselves
are measured, token by token, with float32 gradients: by quartile of the token's probability, with the share of every
quartile in the sum of norms, before and after the weights. Rescaling to mean 1 changes no share, only the sum.

Legend of shapes: N tokens, V vocabulary, H width of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from grpo_replications.replications.grpo_sg.settings import TokenGradientsSettings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.sampling import sample_completions
from grpo_replications.shared.statistics.estimates import default_generator
from grpo_replications.shared.tasks.addition import addition_problems
from grpo_replications.shared.training.raw_logits import head_scaling
from grpo_replications.shared.training.token_weights import gate_gradient, sharpness_weights

LEVELS = ("logits", "hidden_last", "hidden_middle", "parameters")
QUARTILES = (1, 2, 3, 4)
"""Of the tokens by probability: 1 holds the least probable ones."""

RESAMPLES = 500
"""Of the completions, for the intervals of what is pooled over seeds."""

Columns = dict[str, np.ndarray]
"""Numbers per token, (N,) each, by name."""


# --- the claim in closed form -----------------------------------------------------------------------------------------


def complement(logits: Tensor, tokens: Tensor) -> Tensor:
    """1 - pi_o of each token: `logits` (N, V), `tokens` (N,) to (N,); a sum, so that nothing cancels near 1."""
    return _others(logits, tokens).sum(dim=1)


def logit_gradient_norm(logits: Tensor, tokens: Tensor) -> Tensor:
    """sqrt((1 - pi_o)^2 + sum_{v != o} pi_v^2), the norm of the gradient of log pi(o) by the logits, (N, V) to (N,)."""
    others = _others(logits, tokens)
    return (others.sum(dim=1) ** 2 + (others**2).sum(dim=1)).sqrt()


def gradient_bounds(complements: Tensor, weights: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """w (1 - pi) and sqrt(2) w (1 - pi), between which the norm of the weighted gradient lies; (N,) each."""
    return weights * complements, 2**0.5 * weights * complements


def _others(logits: Tensor, tokens: Tensor) -> Tensor:
    """Probabilities with those of the selected tokens set to 0, (N, V)."""
    return logits.softmax(dim=1).scatter(1, tokens.unsqueeze(1), 0.0)


def autograd_norms(logits: Tensor, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
    """Norm of the gradient of each token's (weighted) log-probability by its logits, by autograd; (N, V) to (N,).

    The weights act as in the trainer: through the gate on the log-probabilities.
    """
    leaf = logits.detach().clone().requires_grad_()
    logps = leaf.log_softmax(dim=1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    if weights is not None:
        logps = gate_gradient(logps, weights)
    (gradient,) = torch.autograd.grad(logps.sum(), leaf)
    return gradient.norm(dim=1)


def logit_checks(logits: Tensor, tokens: Tensor) -> dict[str, float]:
    """Largest errors of the claim over N tokens, from float64 `logits` (N, V), and those of the wrong formulas.

    Norms are between 0 and sqrt(2) (1.4 times that with weights), so the errors are absolute. `*_excess` is by how
    much a bound is broken, 0 where it holds.
    """
    doubt, norms = complement(logits, tokens), autograd_norms(logits, tokens)
    closed = logit_gradient_norm(logits, tokens)
    w = sharpness_weights(logits.gather(1, tokens.unsqueeze(1)).squeeze(1))
    weighted = autograd_norms(logits, tokens, w)
    metrics = {
        "norm_error": (norms - closed).abs(),
        "weighted_norm_error": (weighted - w * closed).abs(),
        "control_no_square_root": (norms - doubt).abs(),
        "control_weight_left_out": (weighted - closed).abs(),
        "control_upper_without_sqrt2": norms / doubt - 1,
    }
    for name, measured, (low, high) in (
        ("", norms, gradient_bounds(doubt)),
        ("weighted_", weighted, gradient_bounds(doubt, w)),
    ):
        metrics[f"{name}lower_excess"] = (low - measured).clamp(min=0)
        metrics[f"{name}upper_excess"] = (measured - high).clamp(min=0)
    return {name: float(values.max()) for name, values in metrics.items()}


# --- one completion on a model ----------------------------------------------------------------------------------------


def token_logits(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """Logits of every position of one completion, (N, V) float64 from the model's own, without gradient."""
    head = _head(model)
    with torch.no_grad():
        states = model.base_model(input_ids=_ids(model, prompt, completion), use_cache=False).last_hidden_state
        return head(states[0, len(prompt) - 1 : -1]).double()


def backward_norms(
    model: Any, prompt: Sequence[int], completion: Sequence[int], positions: Sequence[int]
) -> dict[str, np.ndarray]:
    """Norms of the gradients of single tokens' log-probabilities, one entry per position of the completion asked for.

    `hidden_last`: by the state that the head sees; `hidden_middle`: by the output of the middle layer, at all positions
    of the sequence; `parameters`: by all parameters together. Cost: one forward pass, and one backward pass per token
    over the whole sequence; one gradient of the model's size in memory.
    """
    head = _head(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ids = _ids(model, prompt, completion)
    output = model.base_model(input_ids=ids, use_cache=False, output_hidden_states=True)
    middle = output.hidden_states[len(output.hidden_states) // 2]
    last = output.last_hidden_state
    found: dict[str, list[float]] = {level: [] for level in LEVELS[1:]}
    for t in positions:
        # The head is applied to one position only, which is all that this token's probability depends on.
        logp = head(last[0, len(prompt) - 1 + t]).log_softmax(dim=0)[completion[t]]
        by_last, by_middle, *rest = torch.autograd.grad(logp, [last, middle, *parameters], retain_graph=True)
        found["hidden_last"].append(float(by_last.norm()))
        found["hidden_middle"].append(float(by_middle.norm()))
        found["parameters"].append(float(torch.stack([g.norm() for g in rest]).double().norm()))
    return {level: np.array(values) for level, values in found.items()}


def _head(model: Any) -> Any:
    if head_scaling(model.config) != (1.0, None):
        raise ReplicationError("token-gradients reads logits from the head alone; this model scales them afterwards.")
    return model.get_output_embeddings()


def _ids(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    return torch.tensor([[*prompt, *completion]], device=model.device)


# --- what is made of the tokens ---------------------------------------------------------------------------------------


def quartiles(probability: np.ndarray) -> np.ndarray:
    """Quartile of every token by probability, (N,) of 1 to 4; equally many in each, ties in the order of the tokens."""
    ranks = rankdata(probability, method="ordinal")
    return 1 + (4 * (ranks - 1)) // max(len(ranks), 1)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation of two samples (N,); NaN where one of them is constant or has fewer than 3 values."""
    a, b = rankdata(x), rankdata(y)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def summary(tokens: Columns) -> dict[str, float]:
    """Statistics of one set of tokens; `tokens` holds `complement`, `raw_logit`, `weight` and a norm per level.

    For each level: mean norm by quartile (`<level>_norm_q1` ...), the logarithm of the first over
    the last (`<level>_log_ratio`), `<level>_spearman` with 1 - pi, each quartile's share in the sum of norms
    (`<level>_share_q1`) and what the weights add to it (`<level>_share_gain_q1`), and the sum of weighted norms over
    that of the norms, raw (`<level>_sum_raw`) and with weights of mean 1 (`<level>_sum_mean1`). What has no value (a
    correlation with a constant) is left out.
    """
    doubt, w = tokens["complement"], tokens["weight"]
    quartile = quartiles(-doubt)
    values = {
        "tokens": float(len(doubt)),
        "mean_weight": float(w.mean()),
        "logit_probability_spearman": spearman(tokens["raw_logit"], -doubt),
        "weight_probability_spearman": spearman(w, -doubt),
    }
    for q in QUARTILES:
        values[f"probability_q{q}"] = float(1 - doubt[quartile == q].mean())
        values[f"weight_q{q}"] = float(w[quartile == q].mean())
    for level in LEVELS:
        norms = tokens[level]
        weighted = w * norms
        for q in QUARTILES:
            own = quartile == q
            share = norms[own].sum() / norms.sum()
            values[f"{level}_norm_q{q}"] = float(norms[own].mean())
            values[f"{level}_share_q{q}"] = float(share)
            values[f"{level}_share_gain_q{q}"] = float(weighted[own].sum() / weighted.sum() - share)
        values[f"{level}_log_ratio"] = float(np.log(values[f"{level}_norm_q1"] / values[f"{level}_norm_q4"]))
        values[f"{level}_spearman"] = spearman(doubt, norms)
        values[f"{level}_sum_raw"] = float(weighted.sum() / norms.sum())
        values[f"{level}_sum_mean1"] = values[f"{level}_sum_raw"] / float(w.mean())
    return {name: value for name, value in values.items() if np.isfinite(value)}


def pooled_intervals(completions: list[Columns], draws: int = RESAMPLES) -> dict[str, tuple[float, float, float]]:
    """`summary` of all completions together, each value with its 95 % interval by resampling whole completions."""
    generator = default_generator()
    value = summary(_joined(completions))
    resampled = []
    for _ in range(draws):
        chosen = generator.integers(len(completions), size=len(completions))
        resampled.append(summary(_joined([completions[i] for i in chosen])))
    ends = {name: np.quantile([found[name] for found in resampled if name in found], [0.025, 0.975]) for name in value}
    return {name: (value[name], float(ends[name][0]), float(ends[name][1])) for name in value}


def _joined(completions: list[Columns]) -> Columns:
    return {name: np.concatenate([own[name] for own in completions]) for name in completions[0]}


def spaced(length: int, count: int) -> list[int]:
    """`count` positions of a completion of `length` tokens, evenly spaced from the first; all if it is short."""
    return sorted({(i * length) // count for i in range(count)}) if length > count else list(range(length))


# --- the experiment ---------------------------------------------------------------------------------------------------


def token_gradients(settings: TokenGradientsSettings, seeds: range, context: JobContext) -> list[Row]:
    """Checks and measured norms on completions that the model samples: one value per seed, then all seeds together.

    A seed has problems and completions of its own. The closed form is checked on every token; norms of hidden-state and
    parameter gradients are taken at `tokens_per_completion` evenly spaced tokens. Rows: `logit_checks` and `summary` of
    each seed; without a seed `pooled_*` (and `_low`, `_high`, resampling completions) and the tokens themselves
    (`token_*`, numbered by `step`).
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = catalog.load(settings.model)
    model.to(device)
    count = settings.tokens_per_completion
    rows: list[Row] = []
    every: list[Columns] = []
    for place, seed in enumerate(seeds):
        problems = addition_problems(
            settings.completions,
            seed=seed,
            low=settings.low,
            high=settings.high,
            system_message=settings.system_message,
        )
        samples = sample_completions(
            model,
            tokenizer,
            [problem["prompt"] for problem in problems],
            1,
            max_new_tokens=settings.max_new_tokens,
            generator=torch.Generator().manual_seed(2_511_000 + seed),
        )
        checks: list[dict[str, float]] = []
        own: list[Columns] = []
        for i, sample in enumerate(samples):
            completion = sample.completions[0]
            logits, tokens = token_logits(model, sample.prompt_ids, completion), torch.tensor(completion, device=device)
            checks.append(logit_checks(logits, tokens))
            own.append(_measured(model, sample.prompt_ids, completion, logits, tokens, count))
            context.progress((place + (i + 1) / len(samples)) / len(seeds))
        every += own
        values = {name: max(check[name] for check in checks) for name in checks[0]} | summary(_joined(own))
        rows += [{"metric": name, "value": value, "seed": seed} for name, value in values.items()]
    for name, ends in pooled_intervals(every).items():
        rows += [{"metric": f"pooled_{name}{end}", "value": v} for end, v in zip(("", "_low", "_high"), ends)]
    for name, column in _joined(every).items():
        rows += [{"metric": f"token_{name}", "value": float(v), "step": i} for i, v in enumerate(column)]
    return rows


def _measured(
    model: Any, prompt: Sequence[int], completion: Sequence[int], logits: Tensor, tokens: Tensor, count: int
) -> Columns:
    """The columns of one completion at its spaced tokens."""
    positions = spaced(len(completion), count)
    chosen, tokens = logits[positions], tokens[positions]
    raw = chosen.gather(1, tokens.unsqueeze(1)).squeeze(1)
    exact = {
        "complement": complement(chosen, tokens),
        "raw_logit": raw,
        "weight": sharpness_weights(raw),
        "logits": logit_gradient_norm(chosen, tokens),
    }
    return {name: values.cpu().numpy() for name, values in exact.items()} | backward_norms(
        model, prompt, completion, positions
    )
