"""What is gone, by the name it had, and what to use instead.

Runs recorded their whole configuration. Where a setting had its usual value, the run is as it would be today.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from asfl.config.errors import AsflError


class Gone(NamedTuple):
    """A setting that is gone."""

    usual: object
    """The value that runs can have recorded and be as they would be today; `ANY` if it never changed results."""
    instead: str


ANY = object()
SETTINGS: dict[str, Gone] = {
    "scenario.min_distance_m": Gone(1.0, "clients are 1 m from the server, or further"),
    "scenario.placement": Gone("static", "clients stay where they are; in a cell (channel.kind = 3gpp) they walk"),
    "scenario.channel.delay_spread_s": Gone(3.0e-7, "it is 300 ns"),
    "scenario.channel.path_gain_at_1m_db": Gone(-30.0, "it is -30 dB (§V-A); scale radio.noise_psd_w_per_hz instead"),
    "scenario.channel.trace_rsrp_tx_power_w": Gone(0.03162277660168379, "it is 15 dBm: 46 dBm over 1,200 elements"),
    "scenario.channel.trace_median_gain_db": Gone("auto", "scale the gains in the file"),
    "scenario.channel.cell.direction_deg": Gone("auto", "each client walks its own way"),
    "scenario.channel.cell.indoor_share": Gone(0.0, "all clients are outdoors"),
    "scenario.channel.cell.site_distance_m": Gone("auto", "it is the standard's"),
    "scenario.channel.cell.neighbour_load": Gone(0.5, "neighbours send half of the time"),
    "data.folder": Gone(ANY, "give --data-dir, or set the environment variable ASFL_DATA_DIR"),
    "data.held_out": Gone(0.1, "data.validation is the share that devices hold out, too"),
    "data.shards_per_client": Gone(2, "with data.partition = shards each client gets two"),
    "output.folder": Gone(ANY, "give --out (in Python: out=)"),
    "decision.tolerance": Gone(0.01, "ε_o is 0.01, as in the paper"),
    "decision.max_iterations": Gone(20, "a descent ends after 20 passes at the latest"),
    "decision.rb_sharing": Gone("whole", "resource blocks are whole; leave it out"),
    "field.memory": Gone(0.6, "a measurement counts 0.6 times as much after each round"),
    "field.caution": Gone(0.0, "decisions take estimates as they are"),
    "field.nobody_s": Gone(ANY, "a run stops if no client can be reached for 300 s"),
    "field.deadlines": Gone(ANY, "field.deadline_s is for all that a client is asked for"),
    "privacy.delta": Gone(1.0e-5, "ε is given at δ = 1e-5"),
    "robust.trim": Gone(0.2, 'average = "trimmed" leaves out the largest and the smallest fifth'),
}


def refuse_removed(names: Iterable[str]) -> None:
    """Raise an AsflError for the first dotted name of a setting that is gone."""
    for name in names:
        for gone in (name, name.rpartition(".")[0]):
            if gone in SETTINGS:
                raise AsflError(f"{gone} no longer exists: {SETTINGS[gone].instead}")


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded configuration without settings that are gone, if they had their usual values."""
    kept: dict[str, Any] = dict(values)
    for name, gone in SETTINGS.items():
        *sections, key = name.split(".")
        inside = kept
        for section in sections:
            below = inside.get(section)
            inside[section] = dict(below) if isinstance(below, Mapping) else {}
            inside = inside[section]
        if key in inside and inside.pop(key) != gone.usual and gone.usual is not ANY:
            refuse_removed([name])
    return kept


RENAMED_SCHEMES: dict[str, str] = {
    "asfl-sync": "asfl:sync=on",
    "asfl-quant": "asfl:quant=on",
    "asfl-rate": "asfl:rate=on",
    "asfl-mix": "asfl:mix=on",
    "asfl-plus-no-sync": "asfl-plus:sync=off",
    "asfl-plus-no-quant": "asfl-plus:quant=off",
    "asfl-plus-no-rate": "asfl-plus:rate=off",
    "asfl-plus-no-mix": "asfl-plus:mix=off",
    "fedavg-8bit": "fedavg:bits=8",
    "sfl-best-8bit": "sfl-best:bits=8",
    "sfl-best-mix": "sfl-best:mix=on",
    "sfl-best-mix-8bit": "sfl-best:bits=8,mix=on",
    "sfl-best-mix-4bit": "sfl-best:bits=4,mix=on",
    "best-gains-few": "best-gains:clients=0.75",
    "epsl-0": "epsl:share=0",
    "epsl-1": "epsl:share=1",
}
"""Schemes that became parameters of others; read under both names."""
GONE_SCHEMES: dict[str, str] = {
    "energy-delay": "acc-sfl and hasfl choose a cut for each client, too",
    "asfl-hetero": "asfl-plus has one cut for all clients",
    "asfl-plus-no-hetero": "asfl-plus has one cut for all clients",
}
"""Schemes that nothing replaces, and a sentence."""


def scheme_today(name: str) -> str:
    """What a scheme that an earlier version recorded is called now."""
    return RENAMED_SCHEMES.get(name, name)
