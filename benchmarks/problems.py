"""Random rounds in the paper's radio world, with queues and learning state drawn at the scale they have in a run."""

import numpy as np

from asfl.config import Compute, DecisionRules, Radio
from asfl.costs.round import Round
from asfl.costs.world import Budgets
from asfl.models.load import load_profile
from asfl.optimize import Learning, Problem, Queues, Rules


def random_round(rng: np.random.Generator, clients: int, num_rbs: int, model: str) -> Problem:
    """Clients in the disc, Rayleigh fading, any previous cut; budgets of 20 s and 5 J; queues and spreads ~ Exp."""
    profile = load_profile(model)
    distance_m = np.maximum(500 * np.sqrt(rng.random(clients)), 1.0)
    path_gain = 1e-3 * distance_m**-4
    return Problem(
        Round(
            profile=profile,
            radio=Radio(num_rbs=num_rbs),
            compute=Compute(),
            charged_samples=64,
            path_gain=path_gain,
            channel_gain=path_gain * rng.exponential(size=clients),
            cpu_hz=rng.uniform(1e9, 1.6e9, clients),
            previous_cut=int(rng.integers(1, profile.num_layers)),
        ),
        Learning(
            layer_spread=rng.exponential(0.3, profile.num_layers),
            layer_norm2=rng.exponential(1.0, profile.num_layers),
            update_norm2=rng.exponential(1.0, clients),
            update_scale=1.0,
        ),
        Queues(float(rng.exponential(0.5)), rng.exponential(0.5, clients), rng.exponential(0.2, clients)),
        Rules.of(DecisionRules(), clients, num_rbs, Budgets(20.0, 5.0)),
    )
