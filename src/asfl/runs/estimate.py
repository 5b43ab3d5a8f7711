"""What training will take at least, in memory and time, and how many runs are too many: known before it begins."""

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.files import check_memory
from asfl.models.load import load_profile
from asfl.runs.this_process import usual_threads

MAX_RUNS = 10_000
MAX_ROUNDS = 10**7
"""Of all runs of one command together. Even rounds of the smallest network then take days."""
FASTEST_FLOPS = 1e11
"""Of one core: more than any processor does here, so no estimate is too long."""
LONGEST_S = 365 * 24 * 3600.0

_MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}
_BYTES_PER_VALUE = 4


def least_bytes(config: Config) -> float:
    """What a round takes, whatever is decided.

    The model with its optimiser and gradient on the server; one layer of each client, with its own optimiser; and the
    layer's activations for all clients' mini-batches.
    """
    profile, clients = load_profile(config.model_spec), config.scenario.clients
    at_once = min(clients, config.radio.num_rbs)
    copies = 2 + _MOMENTS[config.training.optimizer]
    values = copies * (profile.param_bits.sum() + clients * profile.param_bits[0]) / 32
    values += at_once * config.training.batch_size * profile.activation_bits[0] / 32
    return float(_BYTES_PER_VALUE * values)


def least_seconds(config: Config) -> float:
    """One client learns in every round, on all cores and as fast as any."""
    profile = load_profile(config.model_spec)
    flops = float(profile.forward_flops.sum() + profile.backward_flops.sum()) * config.charged_samples
    return (config.training.rounds + config.training.central_rounds) * flops / (FASTEST_FLOPS * usual_threads())


def check_run(config: Config, side_by_side: int = 1) -> None:
    """Refuse a run, or several side by side, that this machine can't hold, or that would take years."""
    what = "this run" if side_by_side == 1 else f"{side_by_side} such runs side by side (--workers)"
    check_memory(
        side_by_side * least_bytes(config),
        f"{what}: {config.model_spec.name} with {config.scenario.clients:,} clients and "
        f"training.batch_size = {config.training.batch_size:,}",
        "choose a narrower model, fewer clients or smaller batches"
        + (", or fewer workers" if side_by_side > 1 else ""),
    )
    seconds = least_seconds(config)
    if seconds > LONGEST_S and config.training.device != "cuda":
        training = config.training
        raise AsflError(
            f"this run takes at least {seconds / LONGEST_S:,.0f} years here: training.rounds = {training.rounds:,}, "
            f"local_steps = {training.local_steps:,}, batch_size = {training.batch_size:,}; choose less"
        )


def check_count(runs: int, rounds: int, what: str) -> None:
    """Refuse more runs than anybody waits for, before the first of them is planned."""
    if runs > MAX_RUNS or runs * rounds > MAX_ROUNDS:
        raise AsflError(
            f"{what}: {runs:,} runs of {rounds:,} rounds; one command does at most {MAX_RUNS:,} runs and "
            f"{MAX_ROUNDS:,} rounds in all"
        )
