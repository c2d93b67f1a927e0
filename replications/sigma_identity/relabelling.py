"""Experiment `relabelling`: one set of scored completions a prompt, many verifiers; p moves and nothing else does.

Compared over prompts, ||Delta|| = ||grad logit p|| against p says nothing about p alone: easy prompts are other
prompts. Here the completions of a prompt, their scores and their lengths are fixed, and only the verifier changes
(`verifiers`): p sweeps from near 0 to near 1 within each prompt. Estimators: `relabel_estimates`. The same completions
give the norms of groups of 2 to 32, on completions that the prediction has not used.

The policy is the embedded model as it comes. Prompts are sums, as plain text ("13 + 20 =") or in the model's chat
template. A score is grad log pi of the whole completion with respect to the linear layers, as a sketch
(`score_sketch`); inner products of a prompt are in units of its mean squared norm of a score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from grpo_replications.replications.sigma_identity.open_estimates import Classes
from grpo_replications.replications.sigma_identity.relabel_estimates import FORMS, Unit, held_out_norms, trend
from grpo_replications.replications.sigma_identity.score_sketch import ScoreSketch, exact_gram
from grpo_replications.replications.sigma_identity.settings import RelabellingSettings
from grpo_replications.replications.sigma_identity.verifiers import numbers_in, verify
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.sampling import Sample, sample_completions
from grpo_replications.shared.tasks.addition import addition_problems

CHECKED = 6
"""Completions of the first prompt whose inner products are also computed without a sketch."""
NESTED = ("tolerance", "at-least")
NORM_FAMILY = "tolerance"
_PROMPT_STREAM, _LABEL_STREAM, _GROUP_STREAM = 31, 32, 33


def relabelling(settings: RelabellingSettings, seed: int, context: JobContext) -> list[Row]:
    """Rows of one seed's prompts; see `unit_rows`, `trend_rows` and `norm_rows`. Cost: a score per distinct completion.

    `mean_score`: mean inner product of different completions over the mean squared norm, which vanishes if they are
    scored under the policy that drew them. `sketch_error`: |sketched - exact| / |exact| of a few inner products.
    """
    model, tokenizer = catalog.load(settings.model)
    model.to(torch.float32)
    sketch = ScoreSketch(model, settings.sketch_rank, seed, "float32")
    generator = torch.Generator().manual_seed(2_607_900 + seed)
    problems = addition_problems(
        settings.prompts,
        int(np.random.default_rng([_PROMPT_STREAM, seed]).integers(2**31)),
        settings.low,
        settings.high,
        system_message=settings.system_message or "",
    )
    units: list[Unit] = []
    rows, pairs = [], []
    for i, problem in enumerate(problems):
        sample = _drawn(model, tokenizer, problem, settings, generator)
        scored = sample.draws[: settings.scored_samples]
        gram = _gram(sketch, model, sample, scored, settings.score_batch)
        pairs.append(_off_diagonal(gram))
        if i == 0:
            rows.append(row("sketch_error", sketch_error(sketch, model, sample)))
        attached = np.random.default_rng([_LABEL_STREAM, seed, i]).random(len(sample.completions))
        numbers = numbers_in(sample.texts(tokenizer))
        for family, name, right in verify(numbers[sample.draws], int(problem["answer"]), attached[sample.draws]):
            units.append(Unit(i, family, name, gram, right[: len(scored)], float(right.mean())))
        context.progress((i + 1) / len(problems))
    units = [unit for unit in units if unit.has(settings.smallest_class)]
    rows.append(row("mean_score", float(np.mean(pairs))))
    return rows + unit_rows(units) + trend_rows(units) + norm_rows(units, settings, seed)


def _drawn(
    model: Any, tokenizer: Any, problem: dict[str, Any], settings: RelabellingSettings, generator: torch.Generator
) -> Sample:
    """Completions of one problem, those to be scored first and then those that only count for p."""
    prompt = f"{problem['a']} + {problem['b']} =" if settings.style == "text" else problem["prompt"]
    return sample_completions(
        model,
        tokenizer,
        [prompt],
        settings.scored_samples + settings.reference_samples,
        max_new_tokens=settings.max_new_tokens,
        generator=generator,
        max_rows=settings.max_rows,
    )[0]


def _gram(sketch: ScoreSketch, model: Any, sample: Sample, draws: np.ndarray, batch_size: int) -> np.ndarray:
    """Inner products (n, n) of the drawn completions' scores over their mean squared norm; each distinct one once."""
    distinct, index = np.unique(draws, return_inverse=True)
    sketches, _ = sketch(model, sample.prompt_ids, [sample.completions[i] for i in distinct], 1.0, batch_size)
    gram = (sketches @ sketches.T).double().cpu().numpy()[np.ix_(index, index)]
    return gram / np.diag(gram).mean()


def sketch_error(sketch: ScoreSketch, model: Any, sample: Sample) -> float:
    """|sketched - exact| / |exact| of the Gram matrix of a few completions, in the Frobenius norm."""
    chosen = sample.completions[:CHECKED]
    sketches, _ = sketch(model, sample.prompt_ids, chosen)
    exact = exact_gram(model, sample.prompt_ids, chosen)
    return float(((sketches @ sketches.T).double().cpu() - exact).norm() / exact.norm())


def _off_diagonal(gram: np.ndarray) -> float:
    n = len(gram)
    return float((gram.sum() - np.trace(gram)) / (n * (n - 1)))


# --- rows -------------------------------------------------------------------------------------------------------------


def unit_rows(units: list[Unit]) -> list[Row]:
    """What figures draw, by prompt, family and verifier: p, ||Delta||^2 and the scatter in both classes."""
    rows = []
    for unit in units:
        name = f"{unit.prompt}/{unit.family}/{unit.verifier}"
        values = {
            "rate": unit.rate,
            "delta_squared": unit.means.delta_squared,
            "spread_right": unit.means.spread_right,
            "spread_wrong": unit.means.spread_wrong,
        }
        rows += [row(f"{metric}/{name}", value) for metric, value in values.items() if np.isfinite(value)]
    return rows


def trend_rows(units: list[Unit]) -> list[Row]:
    """`exponent/F`, `tilt/F`: a and b of ||Delta|| within prompts over family F; "all": all but the arbitrary one.

    `units/F`, and the smallest and largest p: `lowest_rate/F`, `highest_rate/F`. `signal_to_noise_arbitrary`: what the
    labels that know nothing of the text have for `signal_to_noise` (see `norm_rows`).
    """
    chosen = {family: [unit for unit in units if unit.family == family] for family in NESTED}
    chosen["all"] = [unit for unit in units if unit.family != "arbitrary"]
    rows = []
    for family, own in chosen.items():
        a, b = trend(own)
        values = {"exponent": a, "tilt": b, "units": len(own)}
        if own:
            rates = [unit.rate for unit in own]
            values |= {"lowest_rate": min(rates), "highest_rate": max(rates)}
        rows += [row(f"{metric}/{family}", value) for metric, value in values.items() if np.isfinite(value)]
    arbitrary = [unit.means for unit in units if unit.family == "arbitrary"]
    if arbitrary:
        rows.append(row("signal_to_noise_arbitrary", _signal_to_noise(arbitrary)))
    return rows


def _signal_to_noise(means: list[Classes]) -> float:
    return sum(one.delta_squared for one in means) / sum(one.spread for one in means)


def norm_rows(units: list[Unit], settings: RelabellingSettings, seed: int) -> list[Row]:
    """Norms of groups of each size over the tolerance family, on completions that the prediction has not used.

    `norm_error/<form>/G`: mean |log(predicted / measured)| over mixed groups, for each of FORMS. `slope/measured/G`,
    `slope/formula/G`: slope of log norm on log sigma within units. `norm/<curve>/G/k`: root mean square norms.
    `signal_to_noise`: ||Delta||^2 over n^2 = (v+ + v-) / 2, summed over units; `leading_size`: four over it, the G from
    which an evenly split group holds more signal than noise. `spread_ratio`: v+ over v-.
    """
    own = [unit for unit in units if unit.family == NORM_FAMILY]
    own = [unit for unit in own if all(2 <= part.sum() <= len(part) - 2 for _, part in (unit.part(0), unit.part(1)))]
    if not own:
        return []
    means = [unit.means for unit in own]
    ratio = _signal_to_noise(means)
    rows = [row("signal_to_noise", ratio)]
    if ratio > 0:
        rows.append(row("leading_size", 4 / ratio))
    rows.append(row("spread_ratio", sum(m.spread_right for m in means) / sum(m.spread_wrong for m in means)))
    for size in settings.group_sizes:
        found = held_out_norms(own, size, settings.group_draws, np.random.default_rng([_GROUP_STREAM, seed, size]))
        values = {f"norm_error/{form}/{size}": found.error(form) for form in FORMS}
        values |= {f"slope/{name}/{size}": found.slope(name) for name in ("measured", "formula")}
        for name in ("measured", *FORMS):
            values |= {f"norm/{name}/{size}/{k}": value for k, value in enumerate(found.curve(name)) if k % size}
        rows += [row(metric, value) for metric, value in values.items() if np.isfinite(value)]
    return rows
