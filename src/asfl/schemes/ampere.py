"""Ampere: clients train first, then send their activations once, then the server trains alone.

Zhang, Wong and Varghese, "Ampere: Communication-Efficient and High-Accuracy Split Federated Learning"
(arXiv:2507.07130) train the clients' block with an auxiliary network by FedAvg. Then the block is frozen, each client
sends the activations of all its images once, and the server trains its block on those of all clients together.

What differs from its paper, or is open there, and was chosen:

- Clients train for a given number of rounds; there until they have converged.
- Sending takes a given number of rounds, each of as many mini-batches as a round of the other schemes sends. Those that
  are lost are sent again as long as it lasts; images are augmented once.
- The server begins when the first activations are there. It makes `every` steps a round for each client whose packet
  would arrive, with mini-batches that are mixed from all that it has.
- The auxiliary network is the mean over positions and a linear layer; there it is a narrow copy of the next layer too.
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
class AmpereScheme:
    """`alone` rounds in which each client trains with `every` mini-batches, then `sending` rounds."""

    borrows: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Values]] = {
        "bits": BITS, "cut": WHOLE, "every": WHOLE, "alone": (1.0, 1e6), "sending": (1.0, 1e6)
    }  # fmt: skip
    name: str = "ampere"
    bits: int = BITS_PER_VALUE
    cut: int = 2
    every: int = 5
    alone: float = 10
    sending: float = 10

    @property
    def exchange(self) -> ExchangeRules:
        return local_loss(self.every, phases=(int(self.alone), int(self.sending)))

    def decide(self, problem: Problem, seed: int) -> Decided:
        return borrowed_with_cut(problem, self.cut, self.bits)
