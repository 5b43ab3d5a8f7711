"""All schemes by name. A new one is a file here and a line in `SCHEMES`."""

from asfl.errors import AsflError, nearest
from asfl.schemes.acc_sfl import AccSflScheme
from asfl.schemes.asfl import AsflScheme
from asfl.schemes.base import Decided, Scheme
from asfl.schemes.borrowed import FedAvgScheme, SplitFedScheme, SplitLearningScheme
from asfl.schemes.epsl import EpslScheme

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        AsflScheme(),
        AsflScheme("asfl-joint", solver="joint"),
        FedAvgScheme(),
        SplitLearningScheme(),
        SplitFedScheme(),
        AccSflScheme(),
        EpslScheme(),
        AsflScheme("sfl-cut2", cuts=(2,)),
        AsflScheme("sfl-cut3", cuts=(3,)),
        AsflScheme("asfl-pmax", power="max"),
        AsflScheme("asfl-prand", power="random"),
        AsflScheme("asfl-rbrand", rbs="random"),
    )
}


def scheme_named(name: str) -> Scheme:
    if name not in SCHEMES:
        raise AsflError(f"unknown scheme '{name}': {nearest(name, SCHEMES)}")
    return SCHEMES[name]


__all__ = ["SCHEMES", "Decided", "Scheme", "scheme_named"]
