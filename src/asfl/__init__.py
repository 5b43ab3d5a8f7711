"""ASFL: adaptive split federated learning over wireless networks.

Names are imported when they are first used, so that `import asfl` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from asfl._version import __version__

if TYPE_CHECKING:
    from asfl.budgets import Budgets, resolve_budgets
    from asfl.channel import Channel, ChannelState, make_channel, register_channel
    from asfl.config import Compute, Config, Radio, load_config
    from asfl.costs import Procedure, RoundCost, cost_of_all_cuts, round_cost
    from asfl.data.arrays import register_arrays
    from asfl.decision import Decision
    from asfl.errors import AsflError
    from asfl.frames import load_runs
    from asfl.plugins import load_plugin
    from asfl.profile import ModelProfile, ModelSpec, load_profile, register_model
    from asfl.round import CostEquations, Round
    from asfl.schemes import register_scheme
    from asfl.world import World

_HOME = {
    "AsflError": "errors",
    "Budgets": "budgets",
    "Channel": "channel",
    "ChannelState": "channel",
    "Procedure": "costs",
    "Compute": "config",
    "Config": "config",
    "CostEquations": "round",
    "Decision": "decision",
    "ModelProfile": "profile",
    "ModelSpec": "profile",
    "Radio": "config",
    "Round": "round",
    "RoundCost": "costs",
    "World": "world",
    "cost_of_all_cuts": "costs",
    "load_config": "config",
    "load_plugin": "plugins",
    "load_profile": "profile",
    "load_runs": "frames",
    "make_channel": "channel",
    "register_arrays": "data.arrays",
    "register_channel": "channel",
    "register_model": "profile",
    "register_scheme": "schemes",
    "resolve_budgets": "budgets",
    "round_cost": "costs",
}

__all__ = [
    "AsflError",
    "Budgets",
    "Channel",
    "ChannelState",
    "Compute",
    "Config",
    "CostEquations",
    "Decision",
    "ModelProfile",
    "ModelSpec",
    "Procedure",
    "Radio",
    "Round",
    "RoundCost",
    "World",
    "__version__",
    "cost_of_all_cuts",
    "load_config",
    "load_plugin",
    "load_profile",
    "load_runs",
    "make_channel",
    "register_arrays",
    "register_channel",
    "register_model",
    "register_scheme",
    "resolve_budgets",
    "round_cost",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"asfl.{_HOME[name]}"), name)
    raise AttributeError(f"module 'asfl' has no attribute '{name}'")
