"""What noise costs and what it hides: accuracy, ε, and how many images a curious server still finds again.

The demo with group norm; noise of the same strength on activations and on updates. The attacker is that of
`studies.inversion`, and knows how strong the noise is: it learns on activations of its own images with noise on them.
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from asfl.config import load_config
from asfl.config.randomness import random_stream
from asfl.data import load_data
from asfl.models.build import build_model
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from asfl.train.batches import Normaliser
from asfl.train.privacy import GaussianMechanism, drawn_from
from studies.inversion import Seen, activations, inverter

SEEDS, NOISE, CUTS = (1, 2, 3), (0.0, 0.01, 0.03, 0.1, 0.3, 1.0), (1, 3, 6)
CLIP = 5.0
Found = tuple[float, float, list[float]]


def study(job: tuple[float, int]) -> Found:
    """Accuracy, ε, and the share of private images that are found at each cut."""
    noise, seed = job
    torch.set_num_threads(1)
    config = load_config(
        "demo",
        [
            f"scenario.seed={seed}", "model.norm=group", "output.evaluate_every=1000",
            f"privacy.activation_clip={CLIP}", f"privacy.activation_noise={noise}", f"privacy.update_noise={noise}",
        ],
    ).config  # fmt: skip
    data = load_data(config)
    simulation = Simulation(config, scheme_named("asfl"), data)
    while not simulation.finished:
        record = simulation.play_round()
    model = build_model(config.model_spec)
    model.load_state_dict(simulation.average_model(), strict=False)
    to_input = Normaliser(data, torch.device("cpu"), torch.float32)
    order = random_stream(seed, "inverted images").permutation(len(data.train_images))
    pixels = {"own": data.test_images, "private": data.train_images[order]}
    images = {who: torch.from_numpy(p).flatten(1).float() / data.scale for who, p in pixels.items()}
    inputs = {who: to_input(torch.from_numpy(p)) for who, p in pixels.items()}
    blur, found = GaussianMechanism(config.privacy, drawn_from(seed)), []
    for cut in CUTS:
        seen = {who: activations(model.train(), cut, inputs[who]) for who in inputs}
        crossed = {who: blur.activations((seen[who],), 0, place, 0)[0] for place, who in enumerate(seen)}
        net = inverter(crossed["own"], images["own"], seed)
        with torch.no_grad():
            found.append(Seen.of(net(crossed["private"]).clamp(0, 1), images["private"]).found)
    return record.accuracy or 0.0, record.epsilon or float("nan"), found


def main(folder: Path) -> None:
    jobs = [(noise, seed) for noise in NOISE for seed in SEEDS]
    with ProcessPoolExecutor() as pool:
        results = dict(zip(jobs, pool.map(study, jobs), strict=True))
    table = Table(title=f"Noise on activations (C = {CLIP:g}) and updates (C = 1), {len(SEEDS)} seeds")
    for name in ("σ", "ε", "accuracy (%)", *(f"found at cut {cut} (%)" for cut in CUTS)):
        table.add_column(name, justify="right")
    for noise in NOISE:
        of_noise = [results[noise, seed] for seed in SEEDS]
        shares = np.array([found for _, _, found in of_noise]) * 100
        scores = 100 * np.array([score for score, _, _ in of_noise])
        table.add_row(
            f"{noise:g}",
            f"{of_noise[0][1]:.3g}",
            f"{scores.mean():.1f} ± {scores.std():.1f}",
            *(f"{column.mean():.1f} ± {column.std():.1f}" for column in shares.T),
        )
    Console(width=100).print(table)
