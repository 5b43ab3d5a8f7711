"""All schemes by name. A new one is a file here and a line in `_SHIPPED`, or a file anywhere and `register_scheme`."""

from dataclasses import fields, replace

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.registry import Registry
from asfl.costs.modelled import ASFL, SFL, Procedure
from asfl.optimize.problem import Switches
from asfl.schemes.acc_sfl import AccSflScheme
from asfl.schemes.adaptsfl import AdaptSflScheme
from asfl.schemes.asfl import AsflScheme
from asfl.schemes.base import Decided, Scheme
from asfl.schemes.beyond import BeyondScheme
from asfl.schemes.borrowed import FedAvgScheme, SplitFedScheme, SplitLearningScheme
from asfl.schemes.central import CentralScheme
from asfl.schemes.energy_delay import EnergyDelayScheme
from asfl.schemes.epsl import EpslScheme
from asfl.schemes.fixed import FixedScheme
from asfl.schemes.hasfl import HasflScheme

_QUIET = replace(ASFL, reports=False)
"""With a fixed cut, nothing depends on how far client sides have drifted apart."""
_ALL_ON = Switches(sync=True, quant=True, rate=True, mix=True)
ABLATION = tuple(f"asfl-plus-no-{switch.name}" for switch in fields(Switches))
"""`asfl-plus` with one decision switched off."""
SAME_TOOLS = ("best-gains", "best-gains-few", "equal-error", "sfl-best-mix-4bit")
"""Rules that decide nothing, with few bits, an average every round and a server that mixes, as `asfl-plus` may have."""
_SHIPPED: tuple[Scheme, ...] = (
    AsflScheme(),
    AsflScheme("asfl-joint", solver="joint"),
    BeyondScheme("asfl-plus", _ALL_ON),
    BeyondScheme("asfl-sync", Switches(sync=True)),
    BeyondScheme("asfl-quant", Switches(quant=True)),
    BeyondScheme("asfl-rate", Switches(rate=True)),
    BeyondScheme("asfl-mix", Switches(mix=True)),
    FedAvgScheme(),
    SplitLearningScheme(),
    SplitLearningScheme("sl-best", cut_rule="fastest", all_rbs=True),
    SplitFedScheme(),
    SplitFedScheme("sfl-best", cut_rule="fastest"),
    AccSflScheme(),
    EpslScheme(),
    AsflScheme("sfl-cut2", cuts=(2,), procedure=_QUIET),
    AsflScheme("sfl-cut3", cuts=(3,), procedure=_QUIET),
    AsflScheme("asfl-pmax", power="max"),
    AsflScheme("asfl-prand", power="random"),
    AsflScheme("asfl-rbrand", rbs="random"),
    CentralScheme(),
    EpslScheme("epsl-0", aggregated_share=0.0),
    EpslScheme("epsl-1", aggregated_share=1.0),
    FedAvgScheme("fedavg-8bit", bits=8),
    SplitFedScheme("sfl-best-8bit", cut_rule="fastest", bits=8),
    SplitFedScheme("sfl-best-mix", cut_rule="fastest", procedure=replace(SFL, mixes=True)),
    SplitFedScheme("sfl-best-mix-8bit", cut_rule="fastest", bits=8, procedure=replace(SFL, mixes=True)),
    SplitFedScheme("sfl-best-mix-4bit", cut_rule="fastest", bits=4, procedure=replace(SFL, mixes=True)),
    FixedScheme("best-gains"),
    FixedScheme("best-gains-few", clients=0.75),
    FixedScheme("equal-error", clients=0.75, packet_error_rate=0.1),
    AdaptSflScheme(),
    HasflScheme(),
    EnergyDelayScheme(),
    *(BeyondScheme(name, replace(_ALL_ON, **{name.rpartition("-")[2]: False})) for name in ABLATION),
)
SCHEMES: Registry[Scheme] = Registry("scheme", {scheme.name: scheme for scheme in _SHIPPED})
"""Every scheme that is known here, in the order of tables and colours."""


ON_REQUEST = (
    "asfl-sync", "asfl-quant", "asfl-rate", "asfl-mix", "epsl-0", "epsl-1",
    "fedavg-8bit", "sfl-best-8bit", "sfl-best-mix", "sfl-best-mix-8bit", "adaptsfl", "hasfl", "energy-delay",
    "sfl-best-mix-4bit", "best-gains-few", *ABLATION,
)  # fmt: skip
"""Variants and rivals that a comparison has only if they are named."""


def usual_schemes() -> list[str]:
    """All of them, but for variants."""
    return [name for name in SCHEMES if name not in ON_REQUEST]


def scheme_named(name: str) -> Scheme:
    return SCHEMES.named(name)


def check_scheme_settings(config: Config) -> None:
    """Refuse settings of a scheme that nobody knows; for configurations that a person wrote."""
    for name in config.schemes:
        if name not in SCHEMES:
            raise AsflError(f"schemes.{name}: {SCHEMES.unknown(name)}")


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


__all__ = [
    "ABLATION",
    "ON_REQUEST",
    "SAME_TOOLS",
    "SCHEMES",
    "Decided",
    "Scheme",
    "check_scheme_settings",
    "register_scheme",
    "scheme_named",
    "usual_schemes",
]
