"""All schemes by name. A new one is a file here and a line in `_SHIPPED`, or a file anywhere and `register_scheme`.

A scheme may have parameters: `sfl-best:bits=4,mix=on` is `sfl-best` with two fields of its own.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from asfl.config import Config
from asfl.config.errors import AsflError, nearest, short
from asfl.config.names import Registry
from asfl.costs.modelled import ExchangeRules
from asfl.schemes.acc_sfl import AccSflScheme
from asfl.schemes.adaptsfl import AdaptSflScheme
from asfl.schemes.ampere import AmpereScheme
from asfl.schemes.asfl import AsflScheme
from asfl.schemes.base import Decided, Scheme, Values
from asfl.schemes.borrowed import CentralScheme, FedAvgScheme, SplitFedScheme, SplitLearningScheme
from asfl.schemes.cse_fsl import CseFslScheme
from asfl.schemes.epsl import EpslScheme
from asfl.schemes.fixed import FixedScheme
from asfl.schemes.fsl_sage import FslSageScheme
from asfl.schemes.hasfl import HasflScheme

OURS, PLUS, CEILING = "asfl", "asfl-plus", "central"
"""The scheme that others are measured against; all that is beyond the paper; all data in one place, which has no delay
and no energy and is never ranked by them.
"""
ABLATION = tuple(f"asfl-plus:{decision}=off" for decision in AsflScheme.parameters)
"""`asfl-plus` with one decision switched off."""
SAME_TOOLS = ("best-gains", "best-gains:clients=0.75", "equal-error", "sfl-best:bits=4,mix=on")
"""Rules that decide nothing, with few bits, an average every round and a server that mixes, as `asfl-plus` may have."""
_SHIPPED: tuple[Scheme, ...] = (
    AsflScheme(),
    AsflScheme("asfl-joint", solver="joint"),
    AsflScheme("asfl-plus", sync=True, quant=True, rate=True, mix=True),
    FedAvgScheme(),
    SplitLearningScheme(),
    SplitLearningScheme("sl-best", cut_rule="fastest", all_rbs=True),
    SplitFedScheme(),
    SplitFedScheme("sfl-best", cut_rule="fastest"),
    AccSflScheme(),
    EpslScheme(),
    AsflScheme("sfl-cut2", cuts=(2,)),
    AsflScheme("sfl-cut3", cuts=(3,)),
    AsflScheme("asfl-pmax", power="max"),
    AsflScheme("asfl-prand", power="random"),
    AsflScheme("asfl-rbrand", rbs="random"),
    CentralScheme(),
    FixedScheme("best-gains"),
    FixedScheme("equal-error", clients=0.75, packet_error_rate=0.1),
    AdaptSflScheme(),
    HasflScheme(),
    CseFslScheme(),
    FslSageScheme(),
    AmpereScheme(),
)
ON_REQUEST = ("adaptsfl", "hasfl", "cse-fsl", "fsl-sage", "ampere")
"""Rivals that a comparison has only if they are named."""


class Schemes(Registry[Scheme]):
    """Every scheme that is known here, in the order of tables and colours; with parameters, if a name has some."""

    def __getitem__(self, name: str) -> Scheme:
        base, colon, given = name.partition(":")
        scheme = super().__getitem__(base)
        return _with_parameters(scheme, given) if colon else scheme


def parameters_of(scheme: Any) -> Mapping[str, Values]:
    """What may follow its name, and with which values."""
    found: Mapping[str, Values] = getattr(scheme, "parameters", {})
    return found


def _with_parameters(scheme: Any, given: str) -> Scheme:
    """A shipped scheme with fields such as "bits=8,mix=on"; those with their usual values aren't in its name."""
    allowed = parameters_of(scheme)
    fields: dict[str, object] = {}
    for part in given.split(","):
        key, _, text = part.partition("=")
        if key not in allowed:
            hint = nearest(key, allowed) if allowed else "it has none"
            raise AsflError(f"{short(part)} is no parameter of scheme {scheme.name}: {hint}")
        fields[key] = _value(f"{scheme.name}:{short(part)}", text, allowed[key])
    changed = {key: fields[key] for key in allowed if key in fields and fields[key] != getattr(scheme, key)}
    written = ",".join(f"{key}={_text(value)}" for key, value in changed.items())
    named: Scheme = replace(scheme, name=f"{scheme.name}:{written}", **changed) if changed else scheme
    return named


def _value(where: str, text: str, values: Values) -> object:
    if isinstance(values, Mapping):
        if text not in values:
            raise AsflError(f"{where} must be one of {', '.join(values)}")
        return values[text]
    least, most = values
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise AsflError(f"{where} must be a number from {least:g} to {most:g}")
    return number


def _text(value: object) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else f"{value:g}"


SCHEMES = Schemes("scheme", {scheme.name: scheme for scheme in _SHIPPED})


def split_names(texts: Iterable[str]) -> list[str]:
    """The schemes in lists with commas, each once; "sfl-best:bits=4,mix=on" is one."""
    return list(dict.fromkeys(part.strip() for text in texts for part in re.split(r",(?!\s*[a-z_]+=)", text)))


def usual_schemes() -> list[str]:
    """All of them, but for variants."""
    return [name for name in SCHEMES if name not in ON_REQUEST]


def scheme_named(name: str) -> Scheme:
    return SCHEMES.named(name)


def check_scheme_settings(config: Config) -> None:
    """Refuse settings of a scheme that isn't known; for configurations that a person wrote."""
    for name in config.schemes:
        if name not in SCHEMES:
            raise AsflError(f"schemes.{name}: {SCHEMES.unknown(name)}")


def register_scheme(scheme: Scheme) -> None:
    """Make a scheme of your own known by its `name`, beside those that ship."""
    if isinstance(scheme, type):
        raise AsflError(f"register_scheme: give a scheme, not its class: register_scheme({scheme.__name__}())")
    right = {
        "name": isinstance(getattr(scheme, "name", None), str),
        "exchange": isinstance(getattr(scheme, "exchange", None), ExchangeRules),
        "decide": callable(getattr(scheme, "decide", None)),
    }
    wrong = [part for part, fits in right.items() if not fits]
    if wrong:
        raise AsflError(
            f"register_scheme: {type(scheme).__name__} lacks {', '.join(wrong)}; a scheme has a name, exchange rules "
            "(asfl.costs.ExchangeRules) and decide(problem, seed)"
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
    "parameters_of",
    "register_scheme",
    "scheme_named",
    "split_names",
    "usual_schemes",
]
