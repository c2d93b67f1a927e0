"""Experiment `sharpness-bound`: what can be checked of Theorem 3.3 on policies small enough to know every term.

The theorem bounds the loss over the population of prompts, L_D, by the loss on the training prompts, L_S, plus a
sharpness term that is, to first order, a radius times the norm of the gradient of L_S, plus terms that depend on the
number of parameters, of prompts and on the confidence (Le, Ngo Van & Le, arXiv:2511.00066v4). Our sources state
neither those terms nor the constants, so **the theorem as printed is not tested**. What is, with loss = 1 - mean solve
rate, a number in [0, 1]:

- whether L_D <= L_S + max_{||e|| <= rho} L_S(theta + e) - L_S(theta), and L_D <= L_S + rho ||grad L_S||, without any
  other term: this can fail, and policies trained on shuffled answers, where no prompt tells anything of another, must
  make it fail;
- how loose a bound it is where it holds, and how large the missing term is in the known bound of this form
  (Foret et al., arXiv:2010.01412, theorem 2): at least 1 means that the bound says nothing of a loss in [0, 1];
- whether the term that the method acts on, ||grad L_S||, ranks policies trained on the same prompts by their gap L_D -
  L_S;
- what the weights do to that norm at equal parameters, and to norm and gap of the policies trained with them.

A bound that holds does not show that lowering its right side lowers its left side; only the last two points bear on
that.

The losses and gradients are exact sums over all prompts and completions (`small_policy`); the maximum is the best point
that projected gradient ascent finds, and so a lower bound of the true one: an inequality it satisfies is satisfied.

Legend of shapes: P policies (seeds x replicates, replicates of a seed adjacent), D parameters, M prompts, G
completions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from grpo_replications.replications.grpo_sg.settings import BoundSettings
from grpo_replications.replications.grpo_sg.small_policy import START, AdditionPolicies, digits_of_sums, gradients
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.theory.confidence_weights import sharpness_weights
from grpo_replications.shared.theory.groups import grpo_advantages

METHODS = ("grpo", "sharpness", "sharpness-mean1")
ASCENT_STEPS = 12
CONFIDENCE = 0.05  # delta of the known bound


@dataclass(frozen=True)
class Population:
    """The prompts of P policies: digits of the right answers (P, M, 2) and which prompts each is trained on (P, M)."""

    answers: Tensor
    trained: Tensor

    def empirical(self, policies: AdditionPolicies, theta: Tensor) -> Tensor:
        """L_S of every policy, (P,)."""
        return policies.losses(theta, self.answers, self.trained)

    def whole(self, policies: AdditionPolicies, theta: Tensor) -> Tensor:
        """L_D of every policy, (P,): over all prompts, those of the training included."""
        return policies.losses(theta, self.answers, torch.ones_like(self.trained))


# --- terms of the bound -----------------------------------------------------------------------------------------------


def sharpness(
    loss: Callable[[Tensor], Tensor], theta: Tensor, radius: float, steps: int = ASCENT_STEPS, restarts: int = 1
) -> Tensor:
    """max_{||e|| <= radius} loss(theta + e) - loss(theta) as far as projected ascent finds it, (P,); at least 0.

    `loss` maps (P, D) to (P,). Starts in the direction of the gradient and in `restarts` random ones; every point on
    the way counts. Cost: (1 + restarts) x steps gradients.
    """
    theta = theta.detach()
    with torch.no_grad():
        base = loss(theta)
    best = torch.zeros_like(base)
    generator = torch.Generator().manual_seed(0)
    for attempt in range(1 + restarts):
        point = theta.clone().requires_grad_()
        direction = gradients(loss(point), point)
        if attempt:
            direction = torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        offset = radius * _unit(direction)
        for step in range(steps):
            point = (theta + offset).requires_grad_()
            value = loss(point)
            best = torch.maximum(best, (value - base).detach())
            # Full steps at first, so that the far side of the ball is reached; smaller ones at the end.
            offset = offset + radius * (1 - step / steps) * _unit(gradients(value, point))
            offset = offset * (radius / offset.norm(dim=1, keepdim=True).clamp(min=radius))
        with torch.no_grad():
            best = torch.maximum(best, loss(theta + offset) - base)
    return best


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-300)


def complexity_term(norm: np.ndarray, parameters: int, prompts: int, radius: float) -> np.ndarray:
    """What the known bound adds to L_S and sharpness, without its O(1) inside the root: a lower bound of that term.

    sqrt((D log(1 + |theta|^2 / rho^2 (1 + sqrt(log(n) / D))^2) + 4 log(n / delta)) / (n - 1)) for D parameters and n
    prompts, delta = 0.05 (Foret et al., arXiv:2010.01412, theorem 2). `norm`: |theta|, any shape.
    """
    spread = (1 + math.sqrt(math.log(prompts) / parameters)) ** 2
    inside = parameters * np.log1p(norm**2 / radius**2 * spread) + 4 * math.log(prompts / CONFIDENCE)
    return np.sqrt(inside / (prompts - 1))


def weighted_gradient_norms(policies: AdditionPolicies, theta: Tensor, population: Population) -> tuple[Tensor, ...]:
    """Norms of the exact expected update at equal parameters: plain, weighted, weighted at mean weight 1; (P,) each.

    The update is E[(r - p) sum_t w_t grad log pi(o_t)] with reward r, solve rate p of the prompt and sharpness-guided
    weights of the raw logits; without weights it is minus the gradient of L_S. (P,) each. The mean weight is taken over
    the tokens that the policy samples. Sums over all pairs of tokens.
    """
    first, second = policies.prompts().unbind(dim=1)
    tens, ones = population.answers.unbind(dim=-1)
    digits = torch.arange(10)
    leaf = theta.detach().clone().requires_grad_()
    count = len(first)
    raw1 = policies.logits(leaf, first, second, torch.full_like(first, START))  # (P, M, 10)
    raw2 = policies.logits(leaf, first.repeat_interleave(10), second.repeat_interleave(10), digits.repeat(count))
    raw2 = raw2.reshape(len(theta), count, 10, 10)  # by first and second token
    logp1, logp2 = raw1.log_softmax(dim=2), raw2.log_softmax(dim=3)
    joint = (logp1.unsqueeze(3) + logp2).detach().exp()
    right = (digits == tens.unsqueeze(2)).unsqueeze(3) & (digits == ones.unsqueeze(2)).unsqueeze(2)
    solved = (joint * right).sum(dim=(2, 3), keepdim=True)
    share = (population.trained.double() / population.trained.sum(dim=1, keepdim=True))[:, :, None, None]
    mass = share * joint
    factor = mass * (right.to(joint) - solved)
    w1, w2 = sharpness_weights(raw1).unsqueeze(3), sharpness_weights(raw2)
    mean = (mass * (w1 + w2)).sum(dim=(1, 2, 3)) / 2
    plain = (factor * (logp1.unsqueeze(3) + logp2)).sum(dim=(1, 2, 3))
    weighted = (factor * (w1 * logp1.unsqueeze(3) + w2 * logp2)).sum(dim=(1, 2, 3))
    norms = []
    for value in (plain, weighted):
        (gradient,) = torch.autograd.grad(value.sum(), leaf, retain_graph=True)
        norms.append(gradient.norm(dim=1))
    return norms[0], norms[1], norms[1] / mean


# --- training ---------------------------------------------------------------------------------------------------------


class Draws:
    """Uniform random numbers for seeds x replicates policies; every seed has a generator of its own."""

    def __init__(self, seeds: range, replicates: int) -> None:
        self.replicates = replicates
        self.generators = [torch.Generator().manual_seed(7_919 * seed + 17) for seed in seeds]

    def __call__(self, *shape: int) -> Tensor:
        """Numbers in [0, 1), (P, *shape) float64."""
        own = [torch.rand(self.replicates, *shape, generator=g, dtype=torch.float64) for g in self.generators]
        return torch.cat(own)


def draw_population(base: int, train_size: int, labels: str, seeds: range, replicates: int) -> Population:
    """Training prompts, one draw per seed for all its replicates; `labels = "shuffled"` permutes the answers."""
    answers, trained = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(104_729 * seed + 5)
        order = torch.randperm(base**2, generator=generator)
        mask = torch.zeros(base**2, dtype=torch.bool)
        mask[order[:train_size]] = True
        digits = digits_of_sums(base)
        if labels == "shuffled":
            digits = digits[torch.randperm(base**2, generator=generator)]
        elif labels != "sums":
            raise ValueError(f'labels must be "sums" or "shuffled", not {labels!r}')
        answers += [digits] * replicates
        trained += [mask] * replicates
    return Population(torch.stack(answers), torch.stack(trained))


def surrogate(
    policies: AdditionPolicies,
    theta: Tensor,
    population: Population,
    method: str,
    size: int,
    prompts: int,
    draws: Draws,
) -> Tensor:
    """GRPO's on-policy loss on sampled groups, (P,): its gradient is the sampled update, averaged over tokens.

    `prompts` training prompts are drawn per policy, with `size` completions each. Weights: 1, sharpness-guided ones of
    the raw logits, or those divided by their mean over the step's tokens.
    """
    count = int(population.trained[0].sum())
    known = population.trained.nonzero()[:, 1].reshape(len(theta), count)
    chosen = known.gather(1, (draws(prompts) * count).long()).repeat_interleave(size, dim=1)  # (P, prompts x size)
    first, second = policies.prompts()[chosen].unbind(dim=2)
    token = torch.full_like(chosen, START)
    tokens, logps, raws = [], [], []
    for uniform in draws(2, chosen.size(1)).unbind(dim=1):
        raw = policies.logits(theta, first, second, token)
        logp = raw.log_softmax(dim=2)
        cumulative = logp.detach().exp().cumsum(dim=2)
        token = (uniform.unsqueeze(2) > cumulative).sum(dim=2).clamp(max=raw.size(2) - 1)
        tokens.append(token)
        logps.append(logp.gather(2, token.unsqueeze(2)).squeeze(2))
        raws.append(raw.detach().gather(2, token.unsqueeze(2)).squeeze(2))
    answers = population.answers.gather(1, chosen.unsqueeze(2).expand(-1, -1, 2))
    rewards = (torch.stack(tokens, dim=2) == answers).all(dim=2).double()
    advantages = grpo_advantages(rewards.reshape(len(theta), prompts, size)).reshape(chosen.shape).unsqueeze(2)
    raw = torch.stack(raws, dim=2)
    weights = torch.ones_like(raw) if method == "grpo" else sharpness_weights(raw)
    if method.endswith("-mean1"):
        weights = weights / weights.mean(dim=(1, 2), keepdim=True)
    return -(weights * advantages * torch.stack(logps, dim=2)).mean(dim=(1, 2))


# --- the experiment ---------------------------------------------------------------------------------------------------


def sharpness_bound(settings: BoundSettings, seeds: range, context: JobContext) -> list[Row]:
    """Trains `replicates` policies per seed on the seed's `train_size` prompts; every term at `checkpoints`.

    Settings: `method` (of `METHODS`), `labels` ("sums" or "shuffled"), `train_size`, `base`, `hidden`, `noise` (of the
    policy), `head_shift` (added to all logits, so that weights made for a language model's raw logits are not all at
    their lower bound), `steps`, `lr` (Adam), `prompts_per_step`, `group_size`, `checkpoints`, `radii`. Rows by seed
    and step: see `evaluate`.
    """
    method, replicates = settings.method, settings.replicates
    policies = AdditionPolicies(settings.base, settings.hidden, settings.noise, settings.head_shift)
    population = draw_population(settings.base, settings.train_size, settings.labels, seeds, replicates)
    starts = [policies.initial(replicates, torch.Generator().manual_seed(31 * seed + 3)) for seed in seeds]
    theta = torch.cat(starts).requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=settings.lr)
    draws = Draws(seeds, replicates)
    sizes = settings.group_size, settings.prompts_per_step
    rows: list[Row] = []
    for step in range(settings.steps + 1):
        if step in settings.checkpoints:
            values = evaluate(policies, theta, population, settings.radii)
            rows += _rows_of(values, seeds, replicates, step)
        optimizer.zero_grad()
        surrogate(policies, theta, population, method, *sizes, draws).sum().backward()
        optimizer.step()
        context.progress(step / settings.steps)
    return rows


def evaluate(
    policies: AdditionPolicies, theta: Tensor, population: Population, radii: list[float]
) -> dict[str, np.ndarray]:
    """Every term of the bound for every policy, (P,) each, by name.

    `empirical_loss`, `population_loss`, `unseen_solve_rate` (prompts outside the training), `gap`, `gradient_norm`,
    `parameter_norm`; `weighted_norm_raw` and `weighted_norm_mean1` over the plain norm; `needed_radius`, the smallest
    rho at which L_S + rho ||grad L_S|| reaches L_D; and for each radius rho `sharpness_rho`, `first_order_rho`,
    whether the bound holds with either (`holds_max_rho`, `holds_first_rho`), by how much its right side exceeds L_D
    (`slack_max_rho`), `first_to_max_rho` (their ratio, 1 for a vanishing radius), and `complexity_rho` of the known
    bound.
    """

    def empirical(t: Tensor) -> Tensor:
        return population.empirical(policies, t)

    leaf = theta.detach().clone().requires_grad_()
    loss = empirical(leaf)
    norm = gradients(loss, leaf).norm(dim=1)
    with torch.no_grad():
        whole = population.whole(policies, theta)
        unseen = policies.losses(theta, population.answers, ~population.trained)
    plain, raw, mean1 = weighted_gradient_norms(policies, theta, population)
    gap = whole - loss.detach()
    metrics = {
        "empirical_loss": loss.detach(),
        "population_loss": whole,
        "unseen_solve_rate": 1 - unseen,
        "gap": gap,
        "gradient_norm": norm,
        "parameter_norm": theta.detach().norm(dim=1),
        "weighted_norm_raw": raw / plain,
        "weighted_norm_mean1": mean1 / plain,
        "expected_update_error": (plain / norm - 1).abs(),
        "needed_radius": gap.clamp(min=0) / norm,
    }
    trained = int(population.trained[0].sum())
    for radius in radii:
        rise, first = sharpness(empirical, theta, radius), radius * norm
        metrics |= {
            f"sharpness_{radius:g}": rise,
            f"first_order_{radius:g}": first,
            f"first_to_max_{radius:g}": first / rise,
            f"holds_max_{radius:g}": (gap <= rise).double(),
            f"holds_first_{radius:g}": (gap <= first).double(),
            f"slack_max_{radius:g}": rise - gap,
            f"complexity_{radius:g}": torch.from_numpy(
                complexity_term(metrics["parameter_norm"].numpy(), policies.size, trained, radius)
            ),
        }
    return {name: values.numpy() for name, values in metrics.items()}


def rank_correlations(values: dict[str, np.ndarray]) -> dict[str, float]:
    """How `gradient_norm` and sharpness of policies (R,) rank their gaps: Spearman's correlation, plain and partial.

    Partial: given the empirical loss, so that how far training has come explains neither. NaN where undefined.
    """
    gap, loss = rankdata(values["gap"]), rankdata(values["empirical_loss"])
    metrics = {}
    for name in ("gradient_norm", *(key for key in values if key.startswith("sharpness_"))):
        x = rankdata(values[name])
        plain = _correlation(x, gap)
        with_loss = _correlation(x, loss), _correlation(gap, loss)
        rest = math.sqrt(max(0.0, (1 - with_loss[0] ** 2) * (1 - with_loss[1] ** 2)))
        metrics[f"rank_{name}"] = plain
        metrics[f"rank_{name}_given_loss"] = (plain - with_loss[0] * with_loss[1]) / rest if rest > 1e-6 else math.nan
    return metrics


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) > 0 and np.ptp(y) > 0 else math.nan


def _rows_of(values: dict[str, np.ndarray], seeds: range, replicates: int, step: int) -> list[Row]:
    """Mean over a seed's replicates of every value (the median of `needed_radius`), and its rank correlations."""
    rows: list[Row] = []
    for place, seed in enumerate(seeds):
        own = {name: column[place * replicates : (place + 1) * replicates] for name, column in values.items()}
        means = {name: float(np.median(v) if name == "needed_radius" else v.mean()) for name, v in own.items()}
        if step > 0 and replicates > 2:
            means |= {name: value for name, value in rank_correlations(own).items() if math.isfinite(value)}
        rows += [{"metric": name, "value": value, "seed": seed, "step": step} for name, value in means.items()]
    return rows
