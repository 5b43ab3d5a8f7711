"""The whole experiment as one frozen, validated tree, read from TOML; presets by name."""

from asfl.config.load import Resolved, by_name, differing_names, load_config, preset_names
from asfl.config.tree import (
    Channel,
    Compute,
    Config,
    Data,
    Deadlines,
    DecisionRules,
    Model,
    Network,
    Output,
    Radio,
    Scenario,
    Training,
)

__all__ = [
    "Channel",
    "Compute",
    "Config",
    "Data",
    "Deadlines",
    "DecisionRules",
    "Model",
    "Network",
    "Output",
    "Radio",
    "Resolved",
    "Scenario",
    "Training",
    "by_name",
    "differing_names",
    "load_config",
    "preset_names",
]
