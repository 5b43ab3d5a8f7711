"""A run over links is the run in a single process, bit for bit: records, checkpoint and model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from client_processes import client_processes
from meddling import MeddledLink
from small_runs import CLIENTS, PATIENT, agreement_of, assert_same_run, local_links, over, planned_simulation, tiny
from trainers import random_plans
from waiting import wait_until

from asfl.config.errors import AsflError
from asfl.costs.round import ALLOWED_BITS
from asfl.data import register_arrays
from asfl.field.fleet import RemoteFleet, agreement_for, train
from asfl.field.messages import Agreement, Share, Upload
from asfl.runs import simulation as simulate
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.run import resume, run
from asfl.runs.simulation import Simulation
from asfl.runs.state import flatten
from asfl.schemes import scheme_named
from asfl.train.signals import RoundPlan

RATES = {"adam": "2e-3", "momentum": "0.02", "sgd": "0.05"}
Reference = Callable[[Agreement], Path]


def scheme_and_optimizer(scheme: str, optimizer: str, *overrides: str) -> Agreement:
    chosen = (f"training.optimizer={optimizer}", f"training.learning_rate={RATES[optimizer]}")
    return agreement_of(tiny(*chosen, *overrides), scheme)


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The run in a single process; each only once."""
    done: list[tuple[Agreement, Path]] = []

    def reference(agreement: Agreement) -> Path:
        for known, folder in done:
            if known == agreement:
                return folder
        folder = tmp_path_factory.mktemp("here") / "run"
        assert run(agreement.config, agreement.scheme, folder, threads=agreement.threads)
        done.append((agreement, folder))
        return folder

    return reference


SCHEMES = (
    ("asfl", "adam"), ("sfl", "sgd"), ("fedavg", "adam"), ("epsl", "sgd"), ("sl", "adam"), ("acc-sfl", "sgd"),
    ("asfl-plus", "adam"), ("sfl-best:mix=on", "sgd"),
)  # fmt: skip
SHORT, TWO_STEPS = "training.rounds=4", "training.local_steps=2"


@pytest.mark.parametrize(
    ("scheme", "optimizer", "overrides"),
    [(scheme, optimizer, ()) for scheme, optimizer in SCHEMES]
    + [("sl", "sgd", (SHORT,)), ("epsl", "adam", (SHORT,))]
    + [(scheme, "adam", (SHORT,)) for scheme in ("fedavg:bits=8", "sfl-best:bits=8", "adaptsfl", "hasfl")]
    + [(scheme, "adam", (SHORT, TWO_STEPS)) for scheme in ("asfl", "sfl", "asfl-plus", "sfl-best:bits=8,mix=on")]
    + [
        ("asfl", "adam", (SHORT, more))
        for more in ("data.partition=quantity", "training.initial=2", "model.norm=group")
    ]
    + [("asfl", "momentum", (SHORT,))],
)
def test_every_scheme(
    scheme: str, optimizer: str, overrides: Sequence[str], in_one_process: Reference, tmp_path: Path
) -> None:
    agreement = scheme_and_optimizer(scheme, optimizer, *overrides)
    with local_links(agreement) as links:
        assert train(agreement, tmp_path / "there", links, patience=PATIENT)
    assert_same_run(tmp_path / "there", in_one_process(agreement))


@pytest.mark.parametrize(("scheme", "optimizer"), [("sfl", "sgd"), ("asfl-plus", "adam")])
def test_with_clients_in_processes_whose_streams_break_between_rounds(
    scheme: str, optimizer: str, in_one_process: Reference, tmp_path: Path
) -> None:
    """Clients come back by themselves with the state they had, which still is the right one."""
    agreement = scheme_and_optimizer(scheme, optimizer)
    with client_processes(agreement) as (server, clients):

        def break_a_stream(record: RoundRecord) -> None:
            link = server.links[record.round % CLIENTS]
            before = link._connection
            assert before is not None
            before.cancel()
            wait_until(lambda: link._connection not in (None, before), "the client is back")

        assert train(agreement, tmp_path / "there", server.links, patience=PATIENT, on_round=break_a_stream)
        server.say_bye()
        assert [clients.exit_code(client) for client in range(CLIENTS)] == [0] * CLIENTS
    assert all(record.faults is None for record in read_records(tmp_path / "there"))
    assert_same_run(tmp_path / "there", in_one_process(agreement))


def test_the_rounds_compared_are_eventful(in_one_process: Reference) -> None:
    """The cut moves both ways, packets are lost, and a client has no block."""
    records = read_records(in_one_process(scheme_and_optimizer("asfl", "adam")))
    cuts = [record.cut for record in records if isinstance(record.cut, int)]
    moves = np.sign(np.diff(cuts))
    assert {-1, 1} <= set(moves.tolist())
    assert any(0 < record.arrived_count < record.scheduled_count for record in records)
    assert any(record.scheduled_count < CLIENTS for record in records)
    assert any(record.resplit_shift > 0 for record in records)
    assert scheme_named("asfl-plus").exchange.mixes
    records = read_records(in_one_process(scheme_and_optimizer("asfl-plus", "adam")))
    assert any(record.synced and record.arrived_count > 1 for record in records)
    assert all(record.bits and max(record.bits) < 32 for record in records)


@pytest.mark.parametrize("scheme", ["asfl", "sfl"])
def test_clients_one_by_one_through_the_server(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with large networks: all clients begin at once, the server takes one after the other."""
    monkeypatch.setattr(simulate, "MERGED_ACTIVATIONS", 1)
    agreement = agreement_of(tiny("training.rounds=4"), scheme)
    assert run(agreement.config, scheme, tmp_path / "here", threads=1)
    with local_links(agreement) as links:
        assert train(agreement, tmp_path / "there", links, patience=PATIENT)
    assert_same_run(tmp_path / "there", tmp_path / "here")


@pytest.mark.parametrize("architecture", ["vgg11", "resnet18"])
def test_deep_cuts_of_other_networks(architecture: str) -> None:
    """VGG has matrix products on the client there, whose rounding depends on where in memory the numbers lie."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (80, 3, 32, 32), dtype=np.uint8), np.arange(80) % 10
    register_arrays("field_pictures", images, labels, images[:20], labels[:20])
    agreement = agreement_of(
        tiny("data.name=field_pictures", f"model.architecture={architecture}", "model.width=0.08"), "asfl"
    )
    here = planned_simulation(agreement, [1])
    units = here.trainer.layout.num_units
    plans = list(random_plans([units - 1, units - 2, 3], 6, CLIENTS, seed=2))
    with local_links(agreement) as links:
        assert_same_rounds(here, planned_simulation(agreement, [1], over(links)), plans)


def assert_same_rounds(here: Simulation, there: Simulation, plans: Sequence[RoundPlan]) -> None:
    for plan in plans:
        there.trainer.fleet.begin(plan.index)
        expected, found = here.trainer.round(plan), there.trainer.round(plan)
        np.testing.assert_array_equal(found.loss, expected.loss)
        np.testing.assert_array_equal(found.update_norm2, expected.update_norm2)
        np.testing.assert_array_equal(found.quantisation_error, expected.quantisation_error)
    there.trainer.fleet.gather(optimizers=True)
    for name, tensor in flatten(here.trainer.state).items():
        assert torch.equal(flatten(there.trainer.state)[name], tensor), name


def plans_with_bits(cuts: Sequence[int], rounds: int) -> list[RoundPlan]:
    """Each client has bits of its own, others in every round."""
    random = np.random.default_rng(4)
    return [
        replace(plan, bits=random.permutation(ALLOWED_BITS)) for plan in random_plans(cuts, rounds, CLIENTS, seed=2)
    ]


@pytest.mark.parametrize(
    ("scheme", "local_steps"),
    [(name, 1) for name in ("sfl", "sl", "acc-sfl", "fedavg", "asfl:mix=on")]
    + [(name, 2) for name in ("asfl", "sfl", "epsl", "asfl:mix=on", "sfl-best:mix=on")],
)
def test_few_bits(scheme: str, local_steps: int) -> None:
    agreement = agreement_of(tiny(f"training.local_steps={local_steps}"), scheme)
    here = planned_simulation(agreement, [1])
    with local_links(agreement) as links:
        there = planned_simulation(agreement, [1], over(links))
        units = here.trainer.layout.num_units
        assert_same_rounds(here, there, plans_with_bits([units] if scheme == "fedavg" else range(1, units), 4))


@pytest.mark.parametrize(("scheme", "local_steps"), [("acc-sfl", 1), ("sfl", 2), ("fedavg", 1), ("asfl", 1)])
def test_mini_batches_of_ones_own_size(scheme: str, local_steps: int) -> None:
    agreement = agreement_of(tiny(f"training.local_steps={local_steps}", "training.batch_size=4"), scheme)
    here = planned_simulation(agreement, [1])
    units = here.trainer.layout.num_units
    plans = plans_with_bits([units] if scheme == "fedavg" else range(1, units), 3)
    plans = [replace(plan, batch=np.array([[3, 4, 16, 3], [1, 2, 2, 5], [4, 4, 4, 4]][plan.index])) for plan in plans]
    with local_links(agreement) as links:
        assert_same_rounds(here, planned_simulation(agreement, [1], over(links)), plans)


def averages(plans: Sequence[RoundPlan], depths: Sequence[int]) -> list[RoundPlan]:
    return [replace(plan, synced=min(depth, int(plan.cut[0]))) for plan, depth in zip(plans, depths, strict=True)]


@pytest.mark.parametrize(("few", "optimizer"), [(True, "adam"), (False, "sgd")])
def test_averages_of_client_sides(few: bool, optimizer: str) -> None:
    agreement = scheme_and_optimizer("asfl", optimizer)
    here = planned_simulation(agreement, [1])
    plans = averages(plans_with_bits([2, 3, 4], 7), [1, 0, 9, 2, 9, 0, 9])
    with local_links(agreement) as links:
        there = planned_simulation(agreement, [1], over(links))
        assert_same_rounds(here, there, plans if few else [replace(plan, bits=None) for plan in plans])


def test_a_client_that_comes_back_takes_part_in_averages_with_few_bits() -> None:
    """It has lost what the differences are to, and gets it."""
    agreement = scheme_and_optimizer("asfl", "sgd")
    bits, all_clients = np.array([4, 8, 16, 4]), np.ones(CLIENTS, dtype=bool)
    plans = [RoundPlan(index, np.full(CLIENTS, 3), all_clients, all_clients, bits=bits) for index in range(6)]
    plans = averages(plans, [3, 3, 2, 1, 0, 2])
    here = planned_simulation(agreement, [1])
    with local_links(agreement) as links:
        meddled = [MeddledLink(link) for link in links]
        there = planned_simulation(agreement, [1], over(meddled))
        assert_same_rounds(here, there, plans[:2])
        fleet = there.trainer.fleet
        assert isinstance(fleet, RemoteFleet)
        fleet._roster.in_sync[1] = False  # its side is known, as all have just been averaged
        assert_same_rounds(here, there, plans[2:])
    for client, link in enumerate(meddled):
        helped = [request.round for request in link.requests(Upload) if request.shared is not None]
        assert helped == ([2, 3, 5] if client == 1 else [])
        assert [getattr(share.average.parameters, "bits", 32) for share in link.requests(Share)] == (
            [16, 16, 32, 32, 32] if client == 1 else [16] * 5
        )


@pytest.mark.parametrize(
    ("scheme", "stops_after", "begins"), [("asfl", 4, "here"), ("asfl-plus", 6, "here"), ("asfl-plus", 6, "there")]
)  # of an average
def test_a_run_goes_on_where_another_engine_stopped(
    scheme: str, stops_after: int, begins: str, in_one_process: Reference, tmp_path: Path
) -> None:
    agreement, folder = scheme_and_optimizer(scheme, "adam"), tmp_path / "run"
    rounds: list[RoundRecord] = []

    def stop() -> bool:
        return len(rounds) == stops_after

    with local_links(agreement) as links:
        if begins == "here":
            run(agreement.config, agreement.scheme, folder, threads=1, on_round=rounds.append, should_stop=stop)
            assert agreement_for(agreement.config, agreement.scheme, folder, threads=3) == agreement
            assert train(agreement, folder, links, patience=PATIENT)
        else:
            train(agreement, folder, links, patience=PATIENT, on_round=rounds.append, should_stop=stop)
            assert resume(folder)
    assert_same_run(folder, in_one_process(agreement))


def test_the_server_needs_a_link_per_client(tmp_path: Path) -> None:
    agreement = agreement_of(tiny("scenario.clients=5"), "asfl")
    with local_links(agreement_of(tiny(), "asfl")) as links, pytest.raises(AsflError, match=r"4 links.*clients = 5"):
        train(agreement, tmp_path / "run", links)
