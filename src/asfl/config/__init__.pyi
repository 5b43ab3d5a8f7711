from .channels import (
    Cell as Cell,
    ChannelSettings as ChannelSettings,
    Radio as Radio,
)
from .load import (
    Resolved as Resolved,
    by_name as by_name,
    differing_names as differing_names,
    load_config as load_config,
    preset_names as preset_names,
    recorded_config as recorded_config,
)
from .network import Deadlines as Deadlines, Network as Network
from .protection import Privacy as Privacy, Robustness as Robustness
from .tree import (
    Compute as Compute,
    Config as Config,
    Data as Data,
    DecisionRules as DecisionRules,
    Model as Model,
    Output as Output,
    Scenario as Scenario,
    Training as Training,
)
