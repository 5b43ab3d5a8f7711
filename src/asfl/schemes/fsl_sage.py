"""FSL-SAGE: as CSE-FSL, but the auxiliary network learns to give the server's gradients.

Nair et al., "FSL-SAGE: Accelerating Federated Split Learning via Smashed Activation Gradient Estimation" (ICML 2025)
train client sides by the gradient that an auxiliary network gives in place of the server. In every k-th round the
server returns its own gradients of the activations, and the auxiliary network is fitted to them; it learns in no other
way. Everything else is as in CSE-FSL (`asfl.schemes.cse_fsl`), and so are the choices.

What differs from its paper, or is open there, and was chosen:

- It is fitted by some steps (`asfl.costs.modelled.FITS`) of the usual optimiser to the mini-batches of that round, and
  the squared error is relative to the gradients' size. There: to a memory of 1,000 samples, at the server, which sends
  it back.
- Auxiliary networks are averaged as client sides are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from asfl.config.units import BITS_PER_VALUE
from asfl.costs.modelled import ExchangeRules, local_loss
from asfl.optimize import Problem
from asfl.schemes.base import BITS, WHOLE, Decided, Values
from asfl.schemes.borrowed import borrowed_with_cut


@dataclass(frozen=True)
class FslSageScheme:
    """`align` is k."""

    borrows: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Values]] = {"bits": BITS, "cut": WHOLE, "every": WHOLE, "align": WHOLE}
    name: str = "fsl-sage"
    bits: int = BITS_PER_VALUE
    cut: int = 2
    every: int = 5
    align: int = 10

    @property
    def exchange(self) -> ExchangeRules:
        return local_loss(self.every, self.align)

    def decide(self, problem: Problem, seed: int) -> Decided:
        return borrowed_with_cut(problem, self.cut, self.bits)
