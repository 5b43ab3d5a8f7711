"""Clients as Ray actors, in processes of their own: the same bits, and what happens if one of them dies."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meddling import MeddledLink
from ray_nodes import RAY_LEAVES_THINGS_OPEN, TwoNodes
from small_runs import PATIENT, agreement_of, assert_same_run, comparable, tiny
from waiting import LONG_S, wait_until

from asfl.cli.run import run as run_command
from asfl.config.errors import AsflError, MissingExtraError
from asfl.field.fleet import train
from asfl.field.messages import Agreement, Answer, AnyRequest, Ping, Probe, Where
from asfl.field.ray import RayLink, ray_clients, run_with_actors
from asfl.runs.engines.ray import ray_cluster
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.run import resume, run
from conftest import Asfl, assert_refused

pytestmark = RAY_LEAVES_THINGS_OPEN
PING = Ping()


@pytest.fixture(scope="module")
def cluster(ray_nodes: TwoNodes) -> Iterator[None]:
    with ray_cluster(ray_nodes.address):
        yield


@pytest.fixture(scope="module")
def agreement() -> Agreement:
    return agreement_of(tiny(), "asfl")


@pytest.fixture(scope="module")
def in_one_process(agreement: Agreement, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here") / "run"
    assert run(agreement.config, agreement.scheme, folder, threads=agreement.threads)
    return folder


@pytest.fixture(scope="module")
def clients(cluster: None, agreement: Agreement) -> Iterator[list[RayLink]]:
    with ray_clients(agreement) as links:
        yield links


def pid_of(link: RayLink) -> int:
    import ray

    pid: int = ray.get(link._actor.__ray_call__.remote(lambda actor: os.getpid()))
    return pid


def test_the_same_bits(clients: list[RayLink], agreement: Agreement, in_one_process: Path, tmp_path: Path) -> None:
    """Ten rounds in which the cut moves both ways and packets are lost; clients are processes of their own."""
    assert len({pid_of(link) for link in clients} | {os.getpid()}) == len(clients) + 1
    assert train(agreement, tmp_path / "there", clients, patience=PATIENT)
    assert_same_run(tmp_path / "there", in_one_process)
    records = read_records(in_one_process)
    assert {-1, 1} <= {np.sign(b.mean_cut - a.mean_cut) for a, b in pairwise(records)}
    assert any(0 < record.arrived_count < record.scheduled_count for record in records)


class _KilledWhileAsked(MeddledLink):
    """Its actor is killed when it has got the request of one round, and before it can answer."""

    def __init__(self, link: RayLink, op: str, index: int) -> None:
        super().__init__(link)
        self._ray_link, self._when = link, (op, index)

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        if (request.name, request.round) != self._when:
            return self._link.ask(request, deadline_s)
        pid = pid_of(self._ray_link)
        os.kill(pid, signal.SIGSTOP)
        future = self._link.ask(request, deadline_s)
        os.kill(pid, signal.SIGKILL)
        return future


def test_an_actor_is_killed_in_a_round(
    clients: list[RayLink], agreement: Agreement, in_one_process: Path, tmp_path: Path
) -> None:
    expected = read_records(in_one_process)
    index, victim = next(
        (i, client) for i, record in enumerate(expected) if i >= 2 for client, came in enumerate(record.arrived) if came
    )
    links = [
        _KilledWhileAsked(link, "forward", index) if client == victim else link for client, link in enumerate(clients)
    ]
    generation = clients[victim].generation

    def wait_for_another(record: RoundRecord) -> None:
        wait_until(lambda: clients[victim].trouble is None, "another actor is there")

    assert train(agreement, tmp_path / "there", links, patience=PATIENT, on_round=wait_for_another)
    records = read_records(tmp_path / "there")
    assert comparable(records[:index]) == comparable(expected[:index])
    reason = "its actor died (its process was killed or crashed; out of memory?)"
    assert records[index].faults == [{"client": victim, "round": index + 1, "stage": "forward", "reason": reason}]
    assert records[index].arrived == [came and n != victim for n, came in enumerate(expected[index].arrived)]
    assert all(record.faults is None for record in records[index + 1 :])  # it is back, with the current layers
    assert any(record.arrived[victim] for record in records[index + 1 :])
    assert all(np.isfinite(record.accuracy) for record in records if record.accuracy is not None)
    assert clients[victim].generation == generation + 1


def test_an_actor_that_hangs_is_busy_until_it_answers(clients: list[RayLink]) -> None:
    link, generation = clients[0], clients[0].generation
    pid = pid_of(link)
    os.kill(pid, signal.SIGSTOP)
    try:
        late = link.ask(PING, 1.0)
        assert link.trouble == "still busy with ping"
        with pytest.raises(AsflError, match="still busy with ping"):
            link.ask(PING, 1.0).result(0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert isinstance(late.result(LONG_S), Where)
    assert link.trouble is None
    assert link.generation == generation


def test_an_actor_that_dies_unasked_is_replaced(
    clients: list[RayLink], agreement: Agreement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two rounds: the new one is brought up to date before it is asked, so no client is lost."""
    link, generation = clients[1], clients[1].generation
    may_start, start = threading.Event(), link._start_actor

    def start_when_allowed() -> Any:
        assert may_start.wait(LONG_S)
        return start()

    def replace_it(record: RoundRecord) -> None:
        if record.round == 3:
            monkeypatch.setattr(link, "_start_actor", start_when_allowed)
            os.kill(pid_of(link), signal.SIGKILL)
            wait_until(lambda: link.trouble is not None, "the death is noticed")
            assert link.trouble == "its actor died (its process was killed or crashed; out of memory?)"
            may_start.set()
            wait_until(lambda: link.trouble is None, "another actor is there")
            assert link.generation == generation + 1
            where = link.ask(PING, LONG_S).result(LONG_S)
            assert isinstance(where, Where)
            assert where.round is None  # it knows nothing yet

    assert train(agreement, tmp_path / "there", clients, patience=PATIENT, on_round=replace_it)
    records = read_records(tmp_path / "there")
    assert all(record.faults is None for record in records)
    assert any(record.arrived[1] for record in records[3:])
    with pytest.raises(AsflError, match=r"torch\.complex64"):  # what can't be sent is said
        link.ask(Probe(data=torch.ones(2, dtype=torch.complex64)), 1.0).result(0)
    assert link.trouble is None


def test_nodes_that_cant_be_clients(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying:
        def __init__(self, current_folder: str) -> None:
            pass

        def stay(self) -> None:
            pass

        def hello(self) -> str:
            os._exit(1)

    class WithoutAsfl(Dying):
        def hello(self) -> str:
            raise ModuleNotFoundError("No module named 'asfl'")

    one = tiny("scenario.clients=1", "radio.num_rbs=1")
    without_data = tiny("scenario.clients=1", "radio.num_rbs=1", "data.name=cifar10", "model.width=0.5")
    with pytest.raises(AsflError, match=r"client 0 can't be started on the Ray cluster: .*no cifar10 in"):
        _start(agreement_of(without_data, "asfl"))
    with monkeypatch.context() as patch:
        patch.setattr("asfl.runs.engines.ray.__version__", "9.9.9")
        with pytest.raises(AsflError, match=r"its node has asfl \S+, and here it is 9\.9\.9; all nodes need the same"):
            _start(agreement_of(one, "asfl"))
    monkeypatch.setattr("asfl.field.ray.MOST_LOSSES", 2)
    for actor, words in {
        WithoutAsfl: r"its node can't run asfl \S+: ModuleNotFoundError: No module named 'asfl'",
        Dying: r"its actor died \(its process was killed or crashed",
    }.items():
        monkeypatch.setattr("asfl.field.ray.ClientActor", actor)
        with pytest.raises(AsflError, match=f"client 0 can't be started on the Ray cluster: {words}"):
            _start(agreement_of(one, "asfl"))


def _start(agreement: Agreement) -> None:
    with ray_clients(agreement):
        pass


def test_a_run_that_needs_no_clients_starts_no_cluster(
    agreement: Agreement, in_one_process: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asfl.field.ray.ray_clients", None)
    assert run_with_actors(agreement.config, agreement.scheme, in_one_process)  # it is over
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(AsflError, match="is not a run folder"):
        run_with_actors(agreement.config, agreement.scheme, tmp_path)


def test_stopped_after_a_round_it_goes_on_in_one_process(
    cluster: None, agreement: Agreement, in_one_process: Path, tmp_path: Path
) -> None:
    folder, played = tmp_path / "run", list[RoundRecord]()
    assert not run_with_actors(
        agreement.config, agreement.scheme, folder, threads=agreement.threads, patience=PATIENT,
        on_round=played.append, should_stop=lambda: bool(played),
    )  # fmt: skip
    assert resume(folder)
    assert_same_run(folder, in_one_process)


def test_ctrl_c_while_clients_are_being_started(cluster: None, agreement: Agreement, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_with_actors(agreement.config, agreement.scheme, tmp_path / "run", should_stop=lambda: True)


def test_mistakes(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = asfl("run", "--engine", "processes")
    assert unknown.returncode == 2
    assert "is not one of 'local', 'ray'" in unknown.stderr
    assert_refused(asfl("run", "--engine", "ray", "--address", "127.0.0.1:1"), "no Ray cluster answers there")
    with pytest.raises(AsflError, match=r"--address 127\.0\.0\.1:1 is for --engine ray"):
        run_command(address="127.0.0.1:1", out=tmp_path / "run")
    monkeypatch.setattr("asfl.runs.engines.ray.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"asfl\[ray\]"):
        run_command(engine="ray", out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
