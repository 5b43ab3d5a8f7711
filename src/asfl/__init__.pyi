"""The public names; `__init__.py` imports each when it is first used."""

from ._version import __version__ as __version__
from .api.results import Results as Results
from .api.run import Simulation as Simulation, compare as compare, run as run
from .config import Compute as Compute, Config as Config, Radio as Radio, load_config as load_config
from .config.errors import AsflError as AsflError
from .config.names import ModelSpec as ModelSpec, load_plugin as load_plugin
from .costs.modelled import (
    ExchangeRules as ExchangeRules,
    RoundCost as RoundCost,
    cost_of_all_cuts as cost_of_all_cuts,
    round_cost as round_cost,
)
from .costs.round import CostEquations as CostEquations, Decision as Decision, Round as Round
from .costs.world import Budgets as Budgets, World as World, resolve_budgets as resolve_budgets
from .data.arrays import register_arrays as register_arrays
from .models.load import load_profile as load_profile, register_model as register_model
from .models.profile import ModelProfile as ModelProfile
from .radio.channel import (
    Channel as Channel,
    make_channel as make_channel,
    register_channel as register_channel,
)
from .radio.link import ChannelState as ChannelState
from .results.frames import load_runs as load_runs
from .schemes import register_scheme as register_scheme
