"""Small schemes, channels, models and files of one's own, and a way to forget them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asfl.config.names import CHANNELS, DATASETS, MODELS, _loaded
from asfl.schemes import SCHEMES

EXAMPLES = Path(__file__).parents[2] / "examples"

LOUD_SCHEME = """
from dataclasses import dataclass
import numpy as np
import asfl
from asfl.costs.modelled import ASFL


@dataclass(frozen=True)
class Loud:
    name: str = "loud"
    exchange: asfl.ExchangeRules = ASFL

    def decide(self, problem, seed):
        clients = problem.round.num_clients
        return asfl.Decision(CUT, np.full(clients, BLOCKS), np.full(clients, 1.0))


asfl.register_scheme(Loud())
"""


def loud_scheme(cut: int = 1, blocks: float = 1.0) -> str:
    """The file of a scheme that always decides the same."""
    return LOUD_SCHEME.replace("CUT", str(cut)).replace("BLOCKS", str(blocks))


@contextmanager
def forgotten_afterwards() -> Iterator[None]:
    """What is registered inside is forgotten at the end."""
    try:
        yield
    finally:
        for registry in (SCHEMES, CHANNELS, MODELS, DATASETS):
            registry.clear()
        _loaded.clear()
        for name in [name for name in sys.modules if name.startswith("asfl_plugin_")]:
            del sys.modules[name]
