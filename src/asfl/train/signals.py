"""What the server knows of the learning when it decides: spreads by layer, update norms (§IV of the paper)."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from asfl.optimize import Learning
from asfl.train.fleet import Fleet
from asfl.train.layout import layer_spreads
from asfl.train.reports import projected_spreads
from asfl.train.state import TrainingState
from asfl.train.trainer import Trained

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Signals:
    """What is remembered of the updates."""

    update_norm2: Floats
    """[N] ‖Δ_n‖² of each client's latest update; NaN before its first."""
    update_scale: float
    """U: the mean ‖Δ‖² of all rounds so far; NaN before the first update of anybody.

    Under Adam updates shrink tenfold while it warms up. A mean that forgot the first ones would shrink with them, and
    measure the drift of those large updates in small ones.
    """
    rounds: int = 0
    """How many rounds that is a mean of."""

    @classmethod
    def none_yet(cls, num_clients: int) -> "Signals":
        return cls(np.full(num_clients, np.nan), np.nan)

    def after(self, trained: Trained) -> "Signals":
        arrived = np.isfinite(trained.update_norm2)
        if not arrived.any():
            return self
        mean = float(trained.update_norm2[arrived].mean())
        scale = mean if self.rounds == 0 else self.update_scale + (mean - self.update_scale) / (self.rounds + 1)
        return replace(
            self,
            update_norm2=np.where(arrived, trained.update_norm2, self.update_norm2),
            update_scale=max(scale, np.finfo(float).tiny),  # updates of exactly 0 must not divide by 0
            rounds=self.rounds + 1,
        )

    def learning(self, fleet: Fleet, sampled: NDArray[np.int64] | None, ratio: float = 1.0, *, norms: bool) -> Learning:
        """For the next decision. `norms`: also ‖w̄_m‖², which only the printed objective needs.

        Clients report the parameters that are `sampled`, a share `ratio` of all; None: projections.
        A client without an update so far counts like the mean one; before any update all count 1.
        """
        scale = 1.0 if np.isnan(self.update_scale) else self.update_scale
        layout, weights = fleet.state.layout, fleet.state.weights
        if norms:
            fleet.gather()
        if sampled is None:
            spread = projected_spreads(*fleet.projections(), weights, layout.num_units)
        else:
            sides, whose = fleet.report(sampled)
            spread = layer_spreads(layout, sides, sampled, weights[list(whose)]) / ratio
        return Learning(
            layer_spread=spread,
            layer_norm2=layer_norms(fleet.state) if norms else np.zeros(layout.num_units),
            # By samples: the update of a client that has twice as many is twice the loss.
            update_norm2=weights * np.where(np.isnan(self.update_norm2), scale, self.update_norm2),
            update_scale=scale,
        )


def layer_norms(state: TrainingState) -> Floats:
    """[M] ‖w̄_m‖² of the average model."""
    squares = state.average_model().parameters.double().square().cpu().numpy()
    return np.asarray(np.diff(np.concatenate([[0.0], np.cumsum(squares)])[state.layout.parameter_edges]))
