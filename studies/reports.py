"""How far spreads are off when clients report little of their sides, and how many bits a report takes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asfl.config import load_config
from asfl.config.shapes import Floats
from asfl.costs.modelled import BITS_OF_REPORTED
from asfl.data import load_data, register_arrays
from asfl.runs.simulation import Simulation
from asfl.schemes.asfl import AsflScheme
from asfl.train.fleet import Projections, projected_spreads, sample_coordinates
from asfl.train.state import Layout, layer_spreads

RUNS = (("cnn-digits", 4, 12, ()), ("vgg19-w0.25 on digits", 12, 4, ("model.architecture=vgg19", "model.width=0.25")))
"""Name, cut, rounds, settings."""
DRAWS = 20
"""Of signs or coordinates in each round."""
Estimate = Callable[[Layout, Tensor, int], Floats]


def projected(count: int) -> Estimate:
    def estimate(layout: Layout, sides: Tensor, seed: int) -> Floats:
        depth = int(np.searchsorted(layout.parameter_edges, sides.shape[1]))
        numbers = Projections.of(layout, sides, seed, 0, depth, count).numbers
        return projected_spreads(numbers, range(len(sides)), np.ones(len(sides)), layout.num_units)

    return estimate


def sampled(ratio: float) -> Estimate:
    def estimate(layout: Layout, sides: Tensor, seed: int) -> Floats:
        columns = sample_coordinates(sides.shape[1], ratio, np.random.default_rng(seed))
        return layer_spreads(layout, sides[:, columns], columns) / ratio

    return estimate


WAYS = {
    **{f"{count} numbers a layer": projected(count) for count in (16, 64, 256)},
    "a share of 5 %": sampled(0.05),
    "a share of 0.1 %": sampled(0.001),
}


def bits(way: str, cut: int, parameters: int) -> float:
    number = float(way.removeprefix("a share of ").split()[0])
    return parameters * number / 100 * 32 if "share" in way else cut * (number * BITS_OF_REPORTED + 32)


def main(folder: Path) -> None:
    digits = load_data(load_config("demo").config)
    large = [images.repeat(1, 3, 1, 1).repeat_interleave(4, 2).repeat_interleave(4, 3) for images in
             map(torch.as_tensor, (digits.train_images, digits.test_images))]  # fmt: skip
    register_arrays("large_digits", large[0].numpy(), digits.train_labels, large[1].numpy(), digits.test_labels)
    for name, cut, rounds, settings in RUNS:
        own = [*settings, "data.name=large_digits", "data.augment=false"] if settings else []
        config = load_config("demo", [*own, f"training.rounds={rounds}", "output.evaluate_every=100"]).config
        simulation = Simulation(config, AsflScheme("asfl", cuts=(cut,)), load_data(config))
        layout = simulation.trainer.layout
        errors: dict[str, list[list[Floats]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            simulation.play_round()
            sides = simulation.trainer.state.clients.parameters
            exact = np.cumsum(layer_spreads(layout, sides))[:cut]  # what candidate cuts 1, 2, … are judged by
            for way, estimate in WAYS.items():
                draws = [np.cumsum(estimate(layout, sides, seed))[:cut] / exact - 1 for seed in range(DRAWS)]
                errors[way].append(draws)
        for way, found in errors.items():
            off, share = 100 * np.abs(np.array(found)), bits(way, cut, sides.shape[1])
            print(
                f"{name}, cut {cut}, {len(sides)} clients: {way}, {share / 1e3:.1f} kbit a report: spreads are off by "
                f"{np.sqrt(np.mean(off**2)):.1f} % (root of the mean square), at most {off.max():.0f} %"
            )
