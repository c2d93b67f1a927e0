"""All completions that a small task allows, computed by many transformers as one text: every prefix once.

Shape legend: S models, L paths, T tokens of a path, M tokens of the whole tree, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_replications.shared.models.many_transformers import ModelStack


@dataclass(frozen=True)
class TokenTree:
    """All completions that a small task allows, as one text per model: every prefix is computed once.

    `paths` (L, T): the completions. `ids`, `positions` (M,), `visible` (M, M): the prompt and every proper prefix of a
    completion, each standing for its last token. `places` (L, T): which of the M predicts a token of a path.
    """

    paths: Tensor
    ids: Tensor
    positions: Tensor
    visible: Tensor
    places: Tensor

    @classmethod
    def of(cls, prompt: Sequence[int], paths: Sequence[Sequence[int]]) -> TokenTree:
        """The tree of `paths`, all of one length, after `prompt`. Raises ValueError for paths of several lengths."""
        if len({len(path) for path in paths}) != 1 or not len(prompt):
            raise ValueError("a token tree needs a prompt and paths of one length")
        place = {tuple(prompt[: i + 1]): i for i in range(len(prompt))}
        for path in paths:
            for t in range(1, len(path)):
                place.setdefault((*prompt, *path[:t]), len(place))
        visible = torch.zeros(len(place), len(place), dtype=torch.bool)
        for text, i in place.items():
            for end in range(len(text)):
                visible[i, place[text[: end + 1]]] = True
        return cls(
            torch.tensor([list(path) for path in paths]),
            torch.tensor([text[-1] for text in place]),
            torch.tensor([len(text) - 1 for text in place]),
            visible,
            torch.tensor([[place[(*prompt, *path[:t])] for t in range(len(path))] for path in paths]),
        )

    def path_logits(self, models: ModelStack) -> Tensor:
        """Logits of each token of each path, (S, L, T, V)."""
        ids = self.ids.expand(len(models), 1, -1)
        return models.logits(ids, self.positions, self.visible)[0][:, 0, self.places]

    @torch.no_grad()
    def path_probabilities(self, models: ModelStack) -> Tensor:
        """Exact probability of every path under each model, float64 (S, L); they sum to one if no other path exists."""
        logps = self.path_logits(models).double().log_softmax(dim=-1)
        return logps.gather(3, self.paths.expand(len(models), -1, -1).unsqueeze(3)).squeeze(3).sum(dim=2).exp()
