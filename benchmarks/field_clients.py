"""Clients for the benchmarks of the field: in this process, behind gRPC streams, or as Ray actors."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil

from asfl.config import Config, load_config
from asfl.config.names import ModelSpec
from asfl.field.certificates import Authority
from asfl.field.fleet import remote_fleet
from asfl.field.membership import enrol_here
from asfl.field.messages import Agreement
from asfl.field.ray import ray_clients
from asfl.field.stream import Identity, StreamServer, take_part
from asfl.train.fleet import FleetMaker, LocalFleet

BATCH = 64
SAMPLES_OF_CLIENT = 128
START_WITHIN_S = 600.0


@dataclass(frozen=True, eq=False)
class Clients:
    """All clients of a run, ready."""

    fleet: FleetMaker
    pids: list[int]
    """Of their processes; none, if they are in this one."""


Transport = Callable[[Agreement, Path], AbstractContextManager[Clients]]
"""Starts clients that have their data in a folder."""


@contextmanager
def in_process(agreement: Agreement, folder: Path) -> Iterator[Clients]:
    yield Clients(LocalFleet, [])


@contextmanager
def by_stream(agreement: Agreement, folder: Path) -> Iterator[Clients]:
    """Each client a fresh Python, as on a machine of its own."""
    context = get_context("spawn")
    with TemporaryDirectory() as own:
        authority = Authority.of(Path(own) / "server")
        homes = [Path(own) / f"device-{client}" for client in range(agreement.config.scenario.clients)]
        devices = [enrol_here(home, authority, home.name, "", "").files(home) for home in homes]
        with StreamServer("127.0.0.1:0", agreement, authority) as server:
            processes = [
                context.Process(target=_be_client, args=(server.address, device, folder), daemon=True)
                for device in devices
            ]
            try:
                for process in processes:
                    process.start()
                server.wait_for_clients(START_WITHIN_S)
                yield Clients(remote_fleet(server.links), [process.pid for process in processes if process.pid])
            finally:
                for process in processes:
                    if process.pid is not None:
                        process.kill()
                        process.join()


def _be_client(address: str, identity: Identity, folder: Path) -> None:
    take_part(address, identity, data_dir=folder)


@contextmanager
def by_ray(agreement: Agreement, folder: Path) -> Iterator[Clients]:
    """Actors of the cluster that runs on this machine (`ray start --head`)."""
    with ray_clients(agreement, data_dir=folder) as links:
        below = [one.info for one in psutil.process_iter(["pid", "cmdline"])]
        pids = [one["pid"] for one in below if (one["cmdline"] or [""])[0].startswith("ray::ClientActor")]
        assert len(pids) == len(links)
        yield Clients(remote_fleet(links), pids)


TRANSPORTS: dict[str, Transport] = {
    "in this process": in_process,
    "gRPC, TLS": by_stream,
    "Ray actors": by_ray,
}


def images_config(model: str, clients: int, folder: Path) -> Config:
    """A run on random images that lie in a file, where processes find them; speed doesn't depend on what they show."""
    random, samples = np.random.default_rng(0), clients * SAMPLES_OF_CLIENT
    images, labels = random.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8), np.arange(samples) % 10
    file = folder / f"random-{clients}.npz"
    np.savez(file, train_images=images, train_labels=labels, test_images=images[:100], test_labels=labels[:100])
    spec = ModelSpec.parse(model)
    settings = {
        "data.name": file, "model.architecture": spec.architecture, "model.width": spec.width,
        "scenario.clients": clients, "training.batch_size": BATCH, "output.track": "none",
    }  # fmt: skip
    return load_config("demo", [f"{name}={value}" for name, value in settings.items()]).config
