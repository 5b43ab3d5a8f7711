from .load import (
    Resolved as Resolved,
    by_name as by_name,
    differing_names as differing_names,
    load_config as load_config,
    preset_names as preset_names,
    recorded_config as recorded_config,
)
from .tree import (
    Cell as Cell,
    ChannelSettings as ChannelSettings,
    Compute as Compute,
    Config as Config,
    Data as Data,
    DecisionRules as DecisionRules,
    Model as Model,
    Network as Network,
    Output as Output,
    Privacy as Privacy,
    Radio as Radio,
    Robustness as Robustness,
    Scenario as Scenario,
    Training as Training,
)
