"""What many clients' numbers become: their mean by samples, or something that one of them alone can't move far.

`mean` counts every client by its samples. `median` (of each number by itself) and `trimmed` (the mean without the
largest and the smallest share of each number) count everybody once: nobody gains weight by saying that it has many
images (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018). Before either, updates that are longer than
`clip` times the median length are shortened to that.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Rule = Literal["mean", "median", "trimmed"]


@dataclass(frozen=True)
class Combining:
    """How rows [A, P], one per client, become one [P]."""

    rule: Rule = "mean"
    trim: float = 0.2
    """Share of the clients that is left out on either side, if trimmed."""
    clip: float = 0.0
    """In median lengths; 0: updates are as long as they are."""

    @property
    def plain(self) -> bool:
        """Whether it is a mean and nothing else, so that sums can be added up as they come."""
        return self.rule == "mean" and self.clip == 0

    def updates(self, rows: Tensor, weights: Floats) -> Tensor:
        """Of updates or gradients."""
        if self.clip:
            rows = rows * self._shortened(rows)[:, None]
        return self._combined(rows, weights)

    def models(self, rows: Tensor, weights: Floats, reference: Tensor) -> Tensor:
        """Of models, whose updates are what they differ by from what all had before, `reference` [P]."""
        if self.clip:
            moved = rows - reference
            short = self._shortened(moved)
            if bool((short < 1).any()):  # else not a bit changes
                rows = reference + moved * short[:, None]
        return self._combined(rows, weights)

    def _shortened(self, updates: Tensor) -> Tensor:
        """[A] what to multiply each with; 1 for those that are short enough."""
        lengths = torch.linalg.vector_norm(updates, dim=1)
        most = self.clip * lengths.quantile(0.5)
        return torch.where(lengths > most, most / lengths, torch.ones_like(lengths))

    def _combined(self, rows: Tensor, weights: Floats) -> Tensor:
        if self.rule == "mean":
            return weighted_mean(rows, weights)
        ordered, count = rows.sort(dim=0).values, len(rows)
        cut = (count - 1) // 2 if self.rule == "median" else min(int(self.trim * count), (count - 1) // 2)
        return ordered[cut : count - cut].mean(0)


def weighted_mean(rows: Tensor, weights: Floats) -> Tensor:
    """Σ w_n row_n / Σ w_n; with equal weights the plain mean, to the bit."""
    if (weights == weights[0]).all():
        return rows.mean(0)
    by_row = torch.from_numpy(weights / weights.sum()).to(rows)
    return (rows * by_row.view(-1, *[1] * (rows.dim() - 1))).sum(0)
