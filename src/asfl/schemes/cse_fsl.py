"""CSE-FSL: clients train on a loss of their own, and send activations now and then.

Mu and Shen, "Communication and Storage Efficient Federated Split Learning" (arXiv:2302.05599) put an auxiliary network
behind the cut of each client. A client takes h mini-batches by its own loss for each one whose activations it sends.
The server has one model and steps with each mini-batch that arrives, one after the other; no gradient comes down. At
the end of a round client sides and auxiliary networks are averaged.

What differs from its paper, or is open there, and was chosen:

- The auxiliary network is the mean over positions and a linear layer (there: layers fitted to each network by hand).
- A round sends as many mini-batches as one of the other schemes; its clients take h times as many.
- The order in which mini-batches arrive is drawn at random.
- A client whose packet is lost is left out of the round.
- Radio and the clients that take part are ASFL's; the cut is fixed.
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
class CseFslScheme:
    """`every` is h. A network with fewer layers than `cut` gets its last cut."""

    borrows: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Values]] = {"bits": BITS, "cut": WHOLE, "every": WHOLE}
    name: str = "cse-fsl"
    bits: int = BITS_PER_VALUE
    cut: int = 2
    every: int = 5

    @property
    def exchange(self) -> ExchangeRules:
        return local_loss(self.every)

    def decide(self, problem: Problem, seed: int) -> Decided:
        return borrowed_with_cut(problem, self.cut, self.bits)
