"""Names that are gone, and what to use instead: `asfl.config.errors.nearest` says it wherever a name isn't known."""

from collections.abc import Mapping

USUAL: Mapping[str, object] = {
    "scenario.channel.trace_antenna": 0,
    "scenario.channel.cell.line_of_sight": "drawn",
    "scenario.channel.cell.walk_m": 100.0,
    "scenario.channel.cell.neighbours": "none",
    "data.quantity_alpha": 1.0,
    "data.test_file": "",
}
"""Settings that are gone, and the value that archived runs may have of each and be as they would be today."""

_PARAMETERS = {
    **{f"asfl-{switch}": f"asfl:{switch}=on" for switch in ("sync", "quant", "rate", "mix")},
    **{f"asfl-plus-no-{switch}": f"asfl-plus:{switch}=off" for switch in ("sync", "quant", "rate", "mix")},
    **{f"{scheme}-8bit": f"{scheme}:bits=8" for scheme in ("fedavg", "sfl-best")},
    "sfl-best-mix": "sfl-best:mix=on",
    "sfl-best-mix-8bit": "sfl-best:bits=8,mix=on",
    "sfl-best-mix-4bit": "sfl-best:bits=4,mix=on",
    "best-gains-few": "best-gains:clients=0.75",
    "epsl-0": "epsl:share=0",
    "epsl-1": "epsl:share=1",
}

INSTEAD: Mapping[str, str] = {
    # settings
    "scenario.min_distance_m": "clients are 1 m from the server, or further",
    "scenario.placement": "clients stay where they are; in a cell (channel.kind = 3gpp) they walk",
    "scenario.channel.delay_spread_s": "it is 300 ns",
    "scenario.channel.path_gain_at_1m_db": "it is -30 dB (§V-A); scale radio.noise_psd_w_per_hz instead",
    "scenario.channel.trace_rsrp_tx_power_w": "it is 15 dBm: 46 dBm over 1,200 elements",
    "scenario.channel.trace_median_gain_db": "scale the gains in the file",
    "scenario.channel.trace_antenna": "tools/read_renew.py makes a trace of the antenna you name",
    "scenario.channel.cell.direction_deg": "each client walks its own way",
    "scenario.channel.cell.indoor_share": "all clients are outdoors",
    "scenario.channel.cell.line_of_sight": "it is drawn by the distance, as in the standard",
    "scenario.channel.cell.walk_m": "clients turn round after 100 m",
    "scenario.channel.cell.neighbours": "scale radio.noise_psd_w_per_hz by the noise that cells around add",
    "scenario.channel.cell.site_distance_m": "no cells are around this one",
    "scenario.channel.cell.neighbour_load": "no cells are around this one",
    "data.folder": "give --data-dir, or set the environment variable ASFL_DATA_DIR",
    "data.quantity_alpha": "sizes are dealt by Dir(1)",
    "data.test_file": "devices measure accuracy on the images they hold out",
    "data.held_out": "data.validation is the share that devices hold out, too",
    "data.shards_per_client": "with data.partition = shards each client gets two",
    "output.folder": "give --out (in Python: out=)",
    "decision.tolerance": "ε_o is 0.01, as in the paper",
    "decision.max_iterations": "a descent ends after 20 passes at the latest",
    "decision.rb_sharing": "resource blocks are whole",
    "field.memory": "a measurement counts 0.6 times as much after each round",
    "field.caution": "decisions take estimates as they are",
    "field.nobody_s": "a run stops if no client can be reached for 300 s",
    "field.deadlines": "field.deadline_s is for all that a client is asked for",
    "privacy.delta": "ε is given at δ = 1e-5",
    "robust.trim": 'average = "median" is the robust one',
    # commands
    "config": "asfl explain demo prints a configuration, asfl check FILE.toml checks one, asfl list presets names them",
    "cost": "asfl decide FILE --cost says what the decision in a round file costs",
    "plan": "asfl advise PRESET --time 30min --battery 50 says what total budgets can buy",
    "profile": "asfl explain vgg19-cifar100 shows a model, asfl list profiles names them",
    "trace": "asfl data trace SCENE --out FILE.npz walks clients through a city",
    "tune": "asfl sweep PRESET --over training.learning_rate=1e-3,3e-3 --set data.validation=0.2 tries learning rates",
    "watch": "asfl report DIR --watch shows runs while they are trained",
    # schemes
    **{name: f"it is {now} now" for name, now in _PARAMETERS.items()},
    **dict.fromkeys(("asfl-hetero", "asfl-plus-no-hetero"), "asfl-plus has one cut for all clients"),
    "energy-delay": "acc-sfl and hasfl choose a cut for each client, too",
}
