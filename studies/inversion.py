"""What a curious server can see: images from activations, for each cut of the demo's network.

The server follows the protocol and looks at what it gets. It knows the client side (clients send it for evaluations
and checkpoints) and has images of the same kind (the test images). On those it trains an inverter from activations to
the image, and uses it on the activations of the clients' training images. It also gets labels, so the mean image of
each class is what it can guess without any inverter.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from asfl.config import load_config
from asfl.config.randomness import random_stream
from asfl.data import ImageData, load_data
from asfl.models.build import build_model
from asfl.models.cuttable import CuttableModel
from asfl.results.charts.files import drawing, save_figure
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from asfl.train.batches import Normaliser

SEEDS = (1, 2, 3, 4, 5)
BATCH, HIDDEN, STEPS, RATE, DECAY = 32, 512, 1500, 1e-3, 1e-2
SHOWN = 10
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """How well images [S, P] were guessed."""

    unexplained: float
    """Mean squared error in shares of the variance of pixels: 1 for the mean image, 0 for the image itself."""
    similarity: float
    """SSIM over the whole image as one window, mean over images."""
    found: float
    """Share of images that are the nearest of all to their guess."""

    @classmethod
    def of(cls, guesses: Tensor, images: Tensor) -> "Seen":
        variance = (images - images.mean(0)).square().mean()
        nearest = torch.cdist(guesses, images).argmin(1)
        return cls(
            float((guesses - images).square().mean() / variance),
            float(similarity(guesses, images).mean()),
            float((nearest == torch.arange(len(images))).double().mean()),
        )


def similarity(one: Tensor, other: Tensor) -> Tensor:
    """[S] SSIM (Wang, Bovik, Sheikh, Simoncelli 2004) of images [S, P] in 0 … 1, with one window: 8×8 has no room."""
    c1, c2 = 0.01**2, 0.03**2
    means = one.mean(1), other.mean(1)
    spreads = one.var(1), other.var(1)
    together = ((one - means[0][:, None]) * (other - means[1][:, None])).sum(1) / (one.shape[1] - 1)
    brightness = (2 * means[0] * means[1] + c1) / (means[0] ** 2 + means[1] ** 2 + c1)
    return brightness * (2 * together + c2) / (spreads[0] + spreads[1] + c2)


def activations(model: CuttableModel, cut: int, pixels: Tensor) -> Tensor:
    """[S, A] what crosses the cut, as in a round: mini-batches in training mode."""
    side = model.client_part(cut)
    with torch.no_grad():
        carries = [side((batch,)) for batch in torch.split(pixels, BATCH)]
    return torch.cat([torch.cat([part.flatten(1) for part in carry], dim=1) for carry in carries])


def inverter(seen: Tensor, images: Tensor, seed: int) -> nn.Module:
    """A network with one hidden layer, trained on pairs the server has."""
    torch.manual_seed(seed)
    scale = nn.BatchNorm1d(seen.shape[1], affine=False)
    net = nn.Sequential(scale, nn.Linear(seen.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, images.shape[1]))
    adam = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    random = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        chosen = torch.randint(len(seen), (BATCH,), generator=random)
        loss = (net(seen[chosen]) - images[chosen]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return net.eval()


def trained(seed: int) -> tuple[CuttableModel, ImageData]:
    """The average model after the demo with this seed."""
    config = load_config("demo", [f"scenario.seed={seed}", "output.evaluate_every=1000"]).config
    data = load_data(config)
    simulation = Simulation(config, scheme_named("asfl"), data)
    while not simulation.finished:
        simulation.play_round()
    model = build_model(config.model_spec)
    model.load_state_dict(simulation.average_model(), strict=False)
    return model, data


def attack(seed: int) -> tuple[dict[str, Seen], Floats]:
    """By what the server knew, and [guesses, images, P] of a few: the images themselves first, then one per cut."""
    torch.set_num_threads(1)
    model, data = trained(seed)
    to_input = Normaliser(data, torch.device("cpu"), torch.float32)
    order = random_stream(seed, "inverted images").permutation(len(data.train_images))
    pixels = {"own": data.test_images, "private": data.train_images[order]}
    images = {who: torch.from_numpy(p).flatten(1).float() / data.scale for who, p in pixels.items()}
    inputs = {who: to_input(torch.from_numpy(p)) for who, p in pixels.items()}
    labels, known = torch.from_numpy(data.train_labels[order]), torch.from_numpy(data.test_labels)
    of_class = torch.stack([images["own"][known == label].mean(0) for label in range(data.num_classes)])
    results = {
        "nothing": Seen.of(images["own"].mean(0).expand_as(images["private"]), images["private"]),
        "label": Seen.of(of_class[labels], images["private"]),
    }
    shown = [images["private"][:SHOWN]]
    for cut in range(1, len(model.units)):
        own, private = (activations(model.train(), cut, inputs[who]) for who in ("own", "private"))
        net = inverter(own, images["own"], seed)
        with torch.no_grad():
            guesses = net(private).clamp(0, 1)
        results[f"cut {cut}"] = Seen.of(guesses, images["private"])
        shown.append(guesses[:SHOWN])
    return results, torch.stack(shown).double().numpy()


def draw(shown: Floats, path: Path) -> None:
    side = round(shown.shape[2] ** 0.5)
    with drawing(6.5, 4.8) as figure:
        grid = figure.subplots(len(shown), shown.shape[1])
        for row, images in enumerate(shown):
            for axes, image in zip(grid[row], images, strict=True):
                axes.imshow(image.reshape(side, side), cmap="gray_r", vmin=0, vmax=1)
                axes.set(xticks=[], yticks=[])
                axes.grid(visible=False)
            title = "image" if row == 0 else f"cut {row}"
            grid[row][0].set_ylabel(title, rotation=0, ha="right", va="center")
        save_figure(figure, path)


def main(folder: Path) -> None:
    with ProcessPoolExecutor() as pool:
        attacks = list(pool.map(attack, SEEDS))
    table = Table(title=f"Images from activations: mean ± standard deviation over {len(SEEDS)} seeds")
    for name in ("the server knows", "unexplained (%)", "SSIM", "found (%)"):
        table.add_column(name, justify="right")
    for known in attacks[0][0]:
        seen = [results[known] for results, _ in attacks]
        columns = {
            ".1f": [100 * s.unexplained for s in seen],
            ".3f": [s.similarity for s in seen],
            ".2f": [100 * s.found for s in seen],
        }
        table.add_row(
            known, *(f"{np.mean(c):{digits}} ± {np.std(c, ddof=1):{digits}}" for digits, c in columns.items())
        )
    Console(width=100).print(table)
    draw(attacks[0][1], folder / "inversion.svg")
