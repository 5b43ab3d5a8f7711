"""A round as named numbers, the same for every tracker."""

import math

from asfl.runs.records import RoundRecord


def scalars(record: RoundRecord) -> dict[str, float]:
    """What there is to plot of a round; numbers that don't exist or aren't finite are left out.

    Behind the slash stands the name the number has in rounds.jsonl and `asfl.load_runs`. What is given per client is
    summed (energy) or averaged (queues; packet error rates and cuts over the clients that took part).
    """
    named = {
        "learning/accuracy": record.accuracy,
        "learning/client_accuracy": record.client_accuracy,
        "learning/uncalibrated_accuracy": record.uncalibrated_accuracy,
        "learning/test_loss": record.test_loss,
        "learning/train_loss": record.train_loss,
        "learning/discrepancy": record.discrepancy,
        "learning/spread": record.spread,
        "learning/update_scale": record.update_scale,
        "learning/resplit_shift": record.resplit_shift,
        "cost/delay_s": record.delay_s,
        "cost/resplit_delay_s": record.resplit_delay_s,
        "cost/uplink_stage_delay_s": record.uplink_stage_delay_s,
        "cost/server_stage_delay_s": record.server_stage_delay_s,
        "cost/total_delay_s": record.total_delay_s,
        "cost/energy_j": sum(record.energy_j),
        "cost/resplit_energy_j": sum(record.resplit_energy_j),
        "cost/total_energy_j": record.total_energy_j,
        "decision/cut": record.mean_cut,
        "decision/scheduled": record.scheduled_count,
        "radio/packet_error_rate": record.mean_packet_error_rate,
        "radio/arrived": record.arrived_count,
        "queues/delay_queue": record.delay_queue,
        "queues/energy_queue": _mean(record.energy_queue),
        "queues/participation_queue": _mean(record.participation_queue),
    }
    return {name: float(value) for name, value in named.items() if value is not None and math.isfinite(value)}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
