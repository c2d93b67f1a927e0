"""Experiment `theorem`: L_PRM = L_GRPO in value and gradient, in float64, and controls that must break it.

The equality rests on one fact: completions that share a prefix share the policy's log-probabilities on it, so a_i may
be averaged over the process set. Hence the policy here is always a function of the prefix (a recurrent net with random
weights, or the embedded language model), never a table of free numbers per token.

Two negative controls show that the check can fail: normalization by sequence, and a second update on the same batch
with clipping. A third comparison is not in the paper: a second update *without* clipping, where linearity in the
advantage still holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from grpo_replications.replications.lambda_grpo.objectives import (
    enumerate_process_sets,
    sequence_level,
    token_level,
    token_terms,
)
from grpo_replications.replications.lambda_grpo.settings import NoSettings, TheoremSettings
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.models.precision import in_float64
from grpo_replications.shared.theory.groups import grpo_advantages
from grpo_replications.shared.theory.process_sets import process_set_sizes, step_advantages

BETA = 0.04
CLIP = 0.2


def theorem(settings: TheoremSettings, seed: int, context: JobContext) -> list[Row]:
    """Largest relative errors over the groups of one seed.

    Source `"random"` (groups of random trees and rewards, recurrent policy) or `"rollouts"` (groups
    sampled from the language model on addition).
    """
    if settings.source == "random":
        worst = random_groups(settings.groups, seed, context)
        example = worked_example()
        worst["worked_example_advantage"] = example.advantage
        worst["worked_example_advantage_population"] = example.advantage_population
    else:
        worst = model_rollouts(settings, seed, context)
    return [{"metric": name, "value": value} for name, value in worst.items()]


def flaw(settings: NoSettings, seed: int, context: JobContext) -> list[Row]:
    """The flaw in both directions, on the worked example and on two prefixes that are equally good; nothing is random.

    `prefix_push_*`: summed push on the shared prefix of the worked example (anti-exploitation: below 0 although the
    prefix begins the best completion, whose advantage is `best_advantage`). `popular_over_rare_*`: push on a prefix of
    three completions over that on a prefix of one, both of reward 1 in a group of six (anti-exploration: the popular
    one of two equally good prefixes is pushed up more).
    """
    example = worked_example()
    rewards = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    ids = torch.tensor([[7], [7], [7], [8], [9], [9]])
    ones = torch.ones_like(ids, dtype=torch.bool)
    advantages = grpo_advantages(rewards.unsqueeze(0), eps=0.0)[0]
    weights = 1.0 / process_set_sizes(ids, ones, 6)[:, 0].double()
    popular, rare = ids[:, 0] == 7, ids[:, 0] == 8
    weighted = advantages * weights
    values = {
        "best_advantage": example.best,
        "prefix_push_grpo": 3 * example.advantage,
        "prefix_push_lambda_grpo": example.advantage,
        "popular_over_rare_grpo": float(advantages[popular].sum() / advantages[rare].sum()),
        "popular_over_rare_lambda_grpo": float(weighted[popular].sum() / weighted[rare].sum()),
    }
    return [{"metric": name, "value": value} for name, value in values.items()]


# --- random groups ----------------------------------------------------------------------------------------------------


class PrefixPolicy(nn.Module):
    """A small recurrent policy in float64: the next token's distribution is a function of the prefix alone."""

    def __init__(self, vocabulary: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64))

        self.embedding, self.recurrence = draw(vocabulary + 1, hidden), draw(hidden, hidden)
        self.head = draw(hidden, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Log-probability of each token given those before it: (G, T) -> (G, T)."""
        state = torch.tanh(self.embedding[-1]).expand(ids.size(0), -1)
        logps = []
        for t in range(ids.size(1)):
            logps.append((state @ self.head).log_softmax(dim=-1).gather(1, ids[:, t : t + 1]))
            state = torch.tanh(self.embedding[ids[:, t]] + state @ self.recurrence)
        return torch.cat(logps, dim=1)


def random_groups(count: int, seed: int, context: JobContext) -> dict[str, float]:
    """Largest errors over `count` random groups: sizes 2-12, lengths 1-12, 2-3 tokens, rewards of several kinds."""
    generator = torch.Generator().manual_seed(seed)
    worst: dict[str, float] = {}
    mean: dict[str, float] = {}
    for index in range(count):
        ids, mask, rewards = _random_group(generator)
        vocabulary = int(ids.max()) + 1
        policy = PrefixPolicy(vocabulary, 6, generator)
        reference = PrefixPolicy(vocabulary, 6, generator)
        beta = BETA if index % 2 else 0.0
        errors = _compare(policy, reference, ids, mask, rewards, beta)
        _keep_worst(worst, errors)
        if index < _CONTROL_GROUPS:
            controls = _controls(policy, reference, ids, mask, rewards, beta, generator)
            for name, value in controls.items():
                # Controls report their mean: a group of equal lengths, say, rightly shows no difference.
                mean[name] = mean.get(name, 0.0) + value / min(count, _CONTROL_GROUPS)
        if index % 50 == 0:
            context.progress(index / count)
    return {**worst, **mean, "groups": float(count)}


_CONTROL_GROUPS = 200


def _random_group(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    size, length, vocabulary = integer(2, 12), integer(1, 12), integer(2, 3)
    ids = torch.randint(vocabulary, (size, length), generator=generator)
    copied = integer(0, size - 1)  # some completions repeat another's beginning or all of it: deep and identical sets
    for row in range(copied):
        ids[row, : integer(0, length)] = ids[-1, 0]
    lengths = torch.randint(1, length + 1, (size,), generator=generator)
    mask = torch.arange(length) < lengths.unsqueeze(1)
    kind = integer(0, 2)
    if kind == 0:
        rewards = torch.randint(2, (size,), generator=generator).double()
    elif kind == 1:
        rewards = torch.randn(size, generator=generator, dtype=torch.float64)
    else:
        rewards = torch.randint(4, (size,), generator=generator).double() / 3
    return ids, mask, rewards


def _compare(
    policy: nn.Module, reference: nn.Module, ids: Tensor, mask: Tensor, rewards: Tensor, beta: float
) -> dict[str, float]:
    """Relative errors of value and gradient, and of the contribution of every process set, for one group."""
    logps = policy(ids)
    old = logps.detach()
    with torch.no_grad():
        ref = reference(ids)
    a = grpo_advantages(rewards.unsqueeze(0), eps=0.0)[0].unsqueeze(1)
    step = step_advantages(ids, mask, rewards, ids.size(0), eps=0.0)
    terms = token_terms(logps, old, ref, a, beta)
    grpo = token_level(terms, mask)
    prm = token_level(token_terms(logps, old, ref, step, beta), mask)
    parameters = list(policy.parameters())
    errors = {
        "value_error": value_error(grpo, prm, terms, mask),
        "gradient_error": relative(gradient(grpo, parameters), gradient(prm, parameters)),
    }
    errors.update(set_contributions(old, ref, a, step, ids, mask, beta))
    return errors


def set_contributions(
    logps: Tensor, ref: Tensor, a: Tensor, step: Tensor, ids: Tensor, mask: Tensor, beta: float
) -> dict[str, float]:
    """Claim 2: at index t a set contributes |lambda| (P A - D) to L_GRPO, and once (P A - D) to L_lambda."""
    per_completion = token_terms(logps, logps, ref, a, beta)
    per_step = token_terms(logps, logps, ref, step, beta)
    weights = 1.0 / process_set_sizes(ids, mask, ids.size(0)).clamp(min=1).double()
    positions = [torch.nonzero(row).flatten() for row in mask]
    contributed, weighted, expected, summed = [], [], [], []
    for t, rows in enumerate_process_sets(ids, mask):
        places = [(row, positions[row][t]) for row in rows]
        contributed.append(sum(per_completion[place] for place in places))
        weighted.append(sum((weights * per_completion)[place] for place in places))
        expected.append((len(rows), per_step[places[0]]))
        summed.append(sum(per_completion[place].abs() for place in places))
    sizes = torch.tensor([size for size, _ in expected], dtype=torch.float64)
    terms, size_of_terms = torch.stack([term for _, term in expected]), torch.stack(summed)
    return {
        "set_contribution_error": relative_to(torch.stack(contributed) - sizes * terms, size_of_terms),
        "set_contribution_error_lambda": relative_to(torch.stack(weighted) - terms, size_of_terms / sizes),
    }


def _controls(
    policy: nn.Module,
    reference: nn.Module,
    ids: Tensor,
    mask: Tensor,
    rewards: Tensor,
    beta: float,
    generator: torch.Generator,
) -> dict[str, float]:
    """The same comparison where the theorem's conditions are broken, or bent."""
    old = policy(ids).detach()
    with torch.no_grad():
        ref = reference(ids)
        for parameter in policy.parameters():  # a second update: the policy has moved away from its frozen copy
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    logps = policy(ids)
    a = grpo_advantages(rewards.unsqueeze(0), eps=0.0)[0].unsqueeze(1)
    step = step_advantages(ids, mask, rewards, ids.size(0), eps=0.0)
    parameters = list(policy.parameters())

    def difference(normalize: Any, old_logps: Tensor, clip: float | None) -> float:
        losses = [normalize(token_terms(logps, old_logps, ref, x, beta, clip), mask) for x in (a, step)]
        return relative(*(gradient(loss, parameters) for loss in losses))

    return {
        "control_sequence_norm": difference(sequence_level, logps.detach(), None),
        "control_two_updates": difference(token_level, old, CLIP),
        "two_updates_unclipped": difference(token_level, old, None),
    }


# --- rollouts of a language model -------------------------------------------------------------------------------------


def model_rollouts(
    settings: TheoremSettings, seed: int, context: JobContext, device: str = "cpu", precision: str = "float64"
) -> dict[str, float]:
    """The comparison on real completions: all parameters of the language model, in float64.

    On another `device`, or in "float32", the model samples and is differentiated there; the losses are summed on the
    CPU in float64 from its log-probabilities.

    The reference policy of the KL term is the same model rounded to bfloat16. Rewards are 1 for a right sum plus a
    random number in [0, 1) for each completion: the theorem is about any rewards, and no group is silent.
    """
    from grpo_replications.shared.models import catalog
    from grpo_replications.shared.tasks.addition import addition_reward

    model, tokenizer = catalog.load(settings.model)
    model = model.to(device)
    worst: dict[str, float] = {}
    tokens = settings.max_new_tokens
    prompts, answers = _prompts(settings, seed)
    rollouts = []
    for prompt in prompts:
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        batch = tokenizer([text] * settings.group_size, return_tensors="pt", add_special_tokens=False)
        sampled = model.generate(
            **batch.to(device), do_sample=True, max_new_tokens=tokens, top_k=0, top_p=1.0, temperature=1.0
        ).cpu()
        prompt_ids = batch.input_ids.cpu()
        rollouts.append((prompt_ids, sampled[:, prompt_ids.size(1) :]))
    reference = [_completion_logps(model.bfloat16().float(), *rollout).detach().double() for rollout in rollouts]
    model = catalog.load(settings.model, dtype=precision)[0]
    model = (in_float64(model) if precision == "float64" else model).to(device)
    generator = torch.Generator().manual_seed(seed)
    nonflat = 0
    for index, ((prompt_ids, ids), ref, answer) in enumerate(zip(rollouts, reference, answers, strict=True)):
        mask = _until_end(ids, model.generation_config.eos_token_id)
        texts = tokenizer.batch_decode(
            [row[real] for row, real in zip(ids, mask, strict=True)], skip_special_tokens=True
        )
        right = torch.tensor(addition_reward(texts, answer=[answer] * len(texts)), dtype=torch.float64)
        rewards = right + torch.rand(len(texts), generator=generator, dtype=torch.float64)
        logps = _completion_logps(model, prompt_ids, ids)
        old = logps.detach()
        a = grpo_advantages(rewards.unsqueeze(0), eps=0.0)[0].unsqueeze(1)
        step = step_advantages(ids, mask, rewards, ids.size(0), eps=0.0)
        terms = token_terms(logps, old, ref, a, BETA)
        grpo = token_level(terms, mask)
        prm = token_level(token_terms(logps, old, ref, step, BETA), mask)
        sizes = process_set_sizes(ids, mask, ids.size(0))
        nonflat += bool(((sizes > 1) & (sizes < ids.size(0))).any())
        errors = {"value_error": value_error(grpo, prm, terms, mask)}
        errors["gradient_error"] = _gradient_error(model, grpo, prm)
        errors.update(set_contributions(old, ref, a, step, ids, mask, BETA))
        _keep_worst(worst, errors)
        context.progress((index + 1) / len(rollouts))
    return {**worst, "groups": float(len(rollouts)), "groups_with_inner_sets": float(nonflat)}


def _prompts(settings: TheoremSettings, seed: int) -> tuple[list[Any], list[Any]]:
    from grpo_replications.shared.tasks.addition import addition_problems

    problems = addition_problems(settings.groups, seed=seed, system_message=settings.system_message)
    return [problem["prompt"] for problem in problems], [problem["answer"] for problem in problems]


def _completion_logps(model: Any, prompt_ids: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of sampled completions under the model's own precision, (G, T); prompts have no padding.

    They are on the CPU wherever the model is, and carry its gradient.
    """
    full = torch.cat([prompt_ids, ids], dim=1).to(model.device)
    logits = model(input_ids=full, attention_mask=torch.ones_like(full)).logits[:, prompt_ids.size(1) - 1 : -1]
    return logits.log_softmax(dim=-1).gather(2, ids.unsqueeze(2).to(model.device)).squeeze(2).cpu()


def _until_end(ids: Tensor, end: int) -> Tensor:
    """Real tokens of each row: everything up to and including the first end of sequence."""
    ended = (ids == end).cumsum(dim=1)
    return (ended == 0) | ((ended == 1) & (ids == end))


def _gradient_error(model: nn.Module, grpo: Tensor, prm: Tensor) -> float:
    """|grad L_GRPO - grad L_PRM| / |grad L_GRPO| over all parameters, holding one copy of the gradient at a time."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    model.zero_grad(set_to_none=True)
    grpo.backward(retain_graph=True)
    size = torch.sqrt(sum((p.grad**2).sum() for p in parameters))
    (-prm).backward()
    difference = torch.sqrt(sum((p.grad**2).sum() for p in parameters))
    model.zero_grad(set_to_none=True)
    return float(difference / size)


# --- the worked example -----------------------------------------------------------------------------------------------


WORKED_REWARDS = (0.5, 0.5, 1.0, 0.0, 0.0, 0.5)
"""Rewards of the paper's worked example; its third to fifth completion share a prefix, the best among them."""


@dataclass(frozen=True)
class WorkedExample:
    """Advantages of the worked example: of the shared prefix (with either deviation) and of its best completion."""

    advantage: float
    advantage_population: float
    best: float


def worked_example() -> WorkedExample:
    """The paper's group of six: the shared prefix has a step advantage below 0 although the best completion starts so.

    The printed -0.22 is that of the sample standard deviation.
    """
    rewards = torch.tensor(WORKED_REWARDS, dtype=torch.float64)
    ids = torch.tensor([[7 if i in (2, 3, 4) else i, i] for i in range(6)])  # three share their first token, 7
    ones = torch.ones_like(ids, dtype=torch.bool)
    sample, population = (float(step_advantages(ids, ones, rewards, 6, ddof=d, eps=0.0)[2, 0]) for d in (1, 0))
    return WorkedExample(sample, population, float(grpo_advantages(rewards.unsqueeze(0), eps=0.0)[0, 2]))


# --- small pieces -----------------------------------------------------------------------------------------------------


def gradient(loss: Tensor, parameters: list[Tensor]) -> Tensor:
    """Gradient of a scalar with respect to all parameters, as one vector."""
    parts = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(parts, parameters)])


def value_error(x: Tensor, y: Tensor, terms: Tensor, mask: Tensor) -> float:
    """|x - y| over the mean size of the terms summed in x; the sum itself may cancel to nearly nothing."""
    return relative_to((x - y).detach(), token_level(terms.detach().abs(), mask))


def relative_to(error: Tensor, size: Tensor) -> float:
    """|error| / |size|; |error| itself where nothing at all is summed."""
    return float(error.norm() / size.norm()) if float(size.norm()) > 0 else float(error.norm())


def relative(x: Tensor, y: Tensor) -> float:
    """|x - y| / max(|x|, |y|), and 0 where both vanish (below 1e-12, as in a silent group without KL)."""
    scale = max(float(x.norm()), float(y.norm()))
    return float((x - y).norm()) / scale if scale > 1e-12 else float((x - y).norm())


def _keep_worst(worst: dict[str, float], errors: dict[str, float]) -> None:
    for name, value in errors.items():
        worst[name] = max(worst.get(name, 0.0), value)
