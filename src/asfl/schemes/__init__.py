"""All schemes by name. A new one is a file here and a line in `SCHEMES`, or a file anywhere and `register_scheme`."""

from asfl.costs import Procedure
from asfl.errors import AsflError
from asfl.registry import Registry
from asfl.schemes.acc_sfl import AccSflScheme
from asfl.schemes.asfl import AsflScheme
from asfl.schemes.base import Decided, Scheme
from asfl.schemes.borrowed import FedAvgScheme, SplitFedScheme, SplitLearningScheme
from asfl.schemes.epsl import EpslScheme

_SHIPPED: tuple[Scheme, ...] = (
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
SCHEMES: Registry[Scheme] = Registry("scheme", {scheme.name: scheme for scheme in _SHIPPED})
"""Every scheme that is known here, in the order of tables and colours."""


def scheme_named(name: str) -> Scheme:
    return SCHEMES.named(name)


def register_scheme(scheme: Scheme) -> None:
    """Make a scheme of your own known by its `name`, beside those that ship."""
    if isinstance(scheme, type):
        raise AsflError(f"register_scheme: give a scheme, not its class: register_scheme({scheme.__name__}())")
    right = {
        "name": isinstance(getattr(scheme, "name", None), str),
        "procedure": isinstance(getattr(scheme, "procedure", None), Procedure),
        "decide": callable(getattr(scheme, "decide", None)),
    }
    wrong = [part for part, fits in right.items() if not fits]
    if wrong:
        raise AsflError(
            f"register_scheme: {type(scheme).__name__} lacks {', '.join(wrong)}; a scheme has a name, a procedure "
            "(asfl.costs.Procedure) and decide(problem, seed)"
        )
    SCHEMES.register(scheme.name, scheme)


__all__ = ["SCHEMES", "Decided", "Scheme", "register_scheme", "scheme_named"]
