"""What is known of each client's link and processor: running estimates, and how far they can be trusted.

Times per bit and per FLOP differ by factors from client to client and from minute to minute, so they are averaged as
logarithms. Evidence fades: with every round all of it counts less. So an estimate follows a link that changes, and it
becomes uncertain for a client that nobody hears from.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRIOR_LOG_VARIANCE = 0.25
"""Before there are several measurements, one is believed to within a factor of e^±0.5."""
SLOWEST_S_PER_BIT, FASTEST_S_PER_BIT = 1.0, 1e-13
"""No link is slower than a bit a second, or faster than 10 Tbit/s, whatever a client says of its busy time."""
SLOWEST_S_PER_FLOP, FASTEST_S_PER_FLOP = 1e-3, 1e-17
LEAST_LATENCY_S, MOST_LATENCY_S = 1e-7, 1e4
LEAST_CLIENT_W, MOST_CLIENT_W = 1e-6, 1e4
"""What a device draws."""
PRIOR_LOSS = 0.02
"""Share of rounds that an unknown client is expected to miss; counts like one round."""


class _Estimate:
    """Arrays [N] that survive the server."""

    def arrays(self) -> dict[str, Floats]:
        return {name.removeprefix("_"): value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def restore(self, arrays: dict[str, Floats]) -> None:
        vars(self).update({f"_{name}": array.copy() for name, array in arrays.items()})


class LogEstimate(_Estimate):
    """A positive quantity of each of N clients, from noisy measurements; fading weights, in logarithms."""

    def __init__(self, first_guess: float | Floats, size: int, least: float = 1e-300, most: float = 1e300) -> None:
        """The guess counts until the first measurement; a measurement beyond `least` or `most` counts as that."""
        self._range = least, most
        self._mean = np.broadcast_to(np.log(first_guess), size).astype(float)
        self._weight = np.zeros(size)
        self._squares = np.zeros(size)
        """Weighted sum of squared deviations from the mean."""

    def add(self, which: int, measured: float) -> None:
        """Take one measurement into account, with weight 1."""
        value = np.log(np.clip(measured, *self._range))
        self._weight[which] += 1.0
        before = value - self._mean[which]
        self._mean[which] += before / self._weight[which]
        self._squares[which] += before * (value - self._mean[which])

    def fade(self, memory: float) -> None:
        """A round has passed."""
        self._weight *= memory
        self._squares *= memory

    @property
    def known(self) -> NDArray[np.bool_]:
        """[N] who was ever measured."""
        return self._weight > 0

    @property
    def value(self) -> Floats:
        """[N] the (geometric) mean."""
        return np.asarray(np.exp(self._mean))

    @property
    def relative_error(self) -> Floats:
        """[N] standard error of the logarithm: 0.1 is about 10 %. Infinite without a measurement."""
        variance = (self._squares + PRIOR_LOG_VARIANCE) / (self._weight + 1.0)
        with np.errstate(divide="ignore"):
            return np.sqrt(variance / self._weight)

    def above(self, caution: float) -> Floats:
        """[N] so many standard errors above the mean; a guess is taken as it is."""
        error = np.where(self.known, self.relative_error, 0.0)
        return np.asarray(self.value * np.exp(caution * error))


class LossEstimate(_Estimate):
    """The share of rounds each client misses: a Beta distribution whose evidence fades."""

    def __init__(self, size: int) -> None:
        self._missed, self._rounds = np.zeros(size), np.zeros(size)

    def add(self, which: int, *, missed: bool) -> None:
        self._missed[which] += missed
        self._rounds[which] += 1.0

    def fade(self, memory: float) -> None:
        self._missed *= memory
        self._rounds *= memory

    @property
    def value(self) -> Floats:
        return np.asarray((self._missed + PRIOR_LOSS) / (self._rounds + 1.0))

    @property
    def error(self) -> Floats:
        """[N] standard deviation of the Beta distribution."""
        share = self.value
        return np.asarray(np.sqrt(share * (1 - share) / (self._rounds + 2.0)))


@dataclass(frozen=True, eq=False)
class LinkState:
    """Links and processors as a decision takes them; arrays have shape [N]."""

    uplink_bps: Floats
    downlink_bps: Floats
    loss: Floats
    client_s_per_flop: Floats
    client_power_w: Floats
    """While computing or sending."""
    server_s_per_flop: float


class FleetEstimates:
    """All there is to know of the clients of a run, and of the server."""

    def __init__(self, clients: int, client_power_w: float) -> None:
        rates, speeds = (FASTEST_S_PER_BIT, SLOWEST_S_PER_BIT), (FASTEST_S_PER_FLOP, SLOWEST_S_PER_FLOP)
        self.latency_s = LogEstimate(1e-3, clients, LEAST_LATENCY_S, MOST_LATENCY_S)
        """Of a request and its answer, without what they carry."""
        self.uplink_s_per_bit = LogEstimate(1e-7, clients, *rates)
        self.downlink_s_per_bit = LogEstimate(1e-7, clients, *rates)
        self.client_s_per_flop = LogEstimate(1e-9, clients, *speeds)
        self.client_power_w = LogEstimate(client_power_w, clients, LEAST_CLIENT_W, MOST_CLIENT_W)
        self.server_s_per_flop = LogEstimate(1e-10, 1)
        self.loss = LossEstimate(clients)

    def fade(self, memory: float) -> None:
        for estimate in self._all().values():
            estimate.fade(memory)

    def links(self, caution: float) -> LinkState:
        """What to decide with."""
        return LinkState(
            uplink_bps=1.0 / self.uplink_s_per_bit.above(caution),
            downlink_bps=1.0 / self.downlink_s_per_bit.above(caution),
            loss=np.minimum(self.loss.value + caution * self.loss.error, 1.0),
            client_s_per_flop=self.client_s_per_flop.above(caution),
            client_power_w=self.client_power_w.above(caution),
            server_s_per_flop=float(self.server_s_per_flop.above(caution)[0]),
        )

    def _all(self) -> dict[str, LogEstimate | LossEstimate]:
        return dict(vars(self))

    def arrays(self) -> dict[str, Floats]:
        return {f"{name}.{part}": a for name, e in self._all().items() for part, a in e.arrays().items()}

    def restore(self, arrays: dict[str, Floats]) -> None:
        for name, estimate in self._all().items():
            prefix = f"{name}."
            own = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
            estimate.restore(own)

    def to_json(self) -> dict[str, list[float | None]]:
        """For the record of a round: values, and beside each how uncertain it is."""
        rates = {"uplink_bps": self.uplink_s_per_bit, "downlink_bps": self.downlink_s_per_bit}
        rates["client_flops"] = self.client_s_per_flop
        found: dict[str, list[float | None]] = {}
        for name, estimate in rates.items():
            found[name] = plain(1.0 / estimate.value)
            found[f"{name}_error"] = plain(estimate.relative_error)
        found["latency_s"] = plain(self.latency_s.value)
        found["loss"], found["loss_error"] = plain(self.loss.value), plain(self.loss.error)
        found["client_power_w"] = plain(self.client_power_w.value)
        return found


def plain(values: Floats) -> list[float | None]:
    """Four digits are more than anybody knows; None where there is nothing."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]
