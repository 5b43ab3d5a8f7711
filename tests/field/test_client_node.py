"""A client by itself: it does what fits its state, and refuses the rest with a reason and without harm."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import terms_of, tiny

from asfl.data import load_data, partition
from asfl.errors import AsflError
from asfl.field.client import ClientNode
from asfl.field.shapes import Blueprint
from asfl.field.wire import Json, Message, encode

CUT = 3


def node_of(scheme: str = "asfl", *overrides: str, client: int = 1) -> ClientNode:
    return ClientNode(terms_of(tiny(*overrides), scheme).welcome(client))


def layers(node: ClientNode, first: int, last: int, value: float = 0.01) -> dict[str, torch.Tensor]:
    a, b = node._layout.parameter_edges, node._layout.statistic_edges
    return {
        "parameters": torch.full((int(a[last] - a[first]),), value),
        "statistics": torch.ones(int(b[last] - b[first])),
    }


def sync(node: ClientNode, round_index: int = 0, cut: int = CUT) -> None:
    answer = node.handle(Message("sync", {"round": round_index, "cut": cut}, layers(node, 0, cut)))
    assert (answer.op, *where(answer)) == ("sync", round_index, cut)


def where(answer: Message) -> tuple[Json, Json]:
    return answer.fields["round"], answer.fields["cut"]


def forward(node: ClientNode, round_index: int = 0, after: int = 0, **others: int) -> Message:
    fields = {"round": round_index, "after": after, "step": 0, "cut": CUT, **others}
    tensors = {} if node._keeps_sides else layers(node, 0, fields["cut"])
    return node.handle(Message("forward", fields, tensors))


def backward(node: ClientNode, packet: Message, round_index: int = 0, step: int = 0, value: float = 1e-3) -> Message:
    gradients = {
        name.replace("carry", "gradient"): torch.full_like(tensor, value)
        for name, tensor in packet.tensors.items()
        if name != "labels"
    }
    return node.handle(Message("backward", {"round": round_index, "after": round_index, "step": step}, gradients))


def assert_refused(answer: Message, op: str, words: str) -> None:
    assert answer.op == "error"
    assert answer.fields["request"] == op
    assert words in answer.text("reason"), answer.text("reason")


def state_of(node: ClientNode, after: int = 0) -> dict[str, torch.Tensor]:
    answer = node.handle(Message("state", {"round": after, "after": after, "optimizers": 1}))
    assert answer.op == "state", answer.fields
    return {name: tensor.clone() for name, tensor in answer.tensors.items()}


def test_it_holds_its_own_samples_only() -> None:
    config = tiny()
    node, data = node_of(client=2), load_data(config)
    own = partition(data.train_labels, config.scenario.clients, config.data.dirichlet_alpha, config.scenario.seed)[2]
    assert len(node._batches._labels) == len(own)
    assert sorted(node._batches._labels.tolist()) == sorted(data.train_labels[own].tolist())


def test_a_step_changes_its_side_and_its_optimiser() -> None:
    node = node_of()
    sync(node)
    before = state_of(node)
    packet = forward(node)
    assert packet.tensors["carry.0"].is_contiguous(memory_format=torch.channels_last)
    norm = backward(node, packet).tensors["norm"]
    after = state_of(node)
    moved = (after["parameters"] - before["parameters"]).square().sum()
    assert float(norm) == pytest.approx(float(moved), rel=1e-4)
    assert after["steps"].tolist() == [1] * CUT + [0] * (node._layout.num_units - CUT)


def test_layers_come_and_go() -> None:
    node = node_of()
    sync(node)
    fields = {"round": 1, "after": 0, "cut": 5}
    assert where(node.handle(Message("grow", fields, layers(node, CUT, 5, 0.5)))) == (1, 5)
    a = int(node._layout.parameter_edges[CUT])
    grown = state_of(node, 1)["parameters"]
    assert (grown[:a] == 0.01).all()
    assert (grown[a:] == 0.5).all()
    answer = node.handle(Message("shrink", {"round": 2, "after": 1, "cut": CUT, "send": 1}))
    assert (answer.tensors["parameters"] == 0.5).all()
    assert len(state_of(node, 2)["parameters"]) == a
    quiet = node.handle(Message("shrink", {"round": 3, "after": 2, "cut": 1, "send": 0}))
    assert (where(quiet), quiet.tensors) == ((3, 1), {})


def test_reported_columns() -> None:
    node = node_of()
    sync(node)
    values = state_of(node)["parameters"]
    columns = np.array([0, 3, 4, len(values) - 1])
    gaps = torch.from_numpy(np.diff(columns, prepend=0))
    answer = node.handle(Message("report", {"round": 0, "after": 0}, {"gaps": gaps}))
    assert torch.equal(answer.tensors["values"], values[columns])


# ---------------------------------------------------------------------- out of order
def test_nothing_before_a_sync() -> None:
    node = node_of()
    assert_refused(forward(node), "forward", "sync comes first")
    assert where(node.handle(Message("ping"))) == (None, 0)


def test_stale_state_is_never_used_silently() -> None:
    node = node_of()
    sync(node, 4)
    assert_refused(forward(node, 5, after=3), "forward", "for a state of round 3, but here it is of round 4")
    assert_refused(forward(node, 3, after=4), "forward", "round 3 is over")
    assert forward(node, 5, after=4).op == "forward"
    assert_refused(forward(node, 6, after=4), "forward", "here it is of round 5")


Ask = Callable[[ClientNode], Message]


@pytest.mark.parametrize(
    ("ask", "op", "words"),
    [
        (lambda n: n.handle(Message("dance")), "dance", "known are sync, grow"),
        (lambda n: n.handle(Message("forward", {"round": 0, "after": 0})), "forward", "step = None"),
        (lambda n: forward(n, cut=CUT + 1), "forward", "this client holds 3 layers"),
        (lambda n: forward(n, cut=99), "forward", "cut = 99"),
        (lambda n: forward(n, step=1), "forward", "step = 1"),
        (lambda n: n.handle(Message("backward", {"round": 0, "after": 0, "step": 0})), "backward", "no forward pass"),
        (lambda n: backward(n, forward(n), step=1), "backward", "no forward pass of round 0, step 1"),
        (lambda n: backward(n, forward(n), round_index=1), "backward", "meant for a state of round 1"),
        (lambda n: backward(n, forward(n), value=float("nan")), "backward", "not finite"),
        (lambda n: forward(n) and n.handle(Message("backward", {"round": 0, "after": 0, "step": 0})),
         "backward", "no tensor gradient.0"),
        (lambda n: n.handle(Message("give", {"round": 0, "after": 0})), "give", "isn't done"),
        (lambda n: n.handle(Message("moved", {"round": 0, "after": 0})), "moved", "isn't done"),
        (lambda n: backward(n, forward(n)) and n.handle(Message("give", {"round": 0, "after": 0})),
         "give", "client sides are kept"),
        (lambda n: n.handle(Message("grow", {"round": 1, "after": 0, "cut": 2})), "grow", "cut = 2"),
        (lambda n: n.handle(Message("grow", {"round": 1, "after": 0, "cut": 5}, layers(n, CUT, 4))),
         "grow", "not float32"),
        (lambda n: n.handle(Message("grow", {"round": 1, "after": 0, "cut": 5}, layers(n, CUT, 5, float("inf")))),
         "grow", "not finite"),
        (lambda n: n.handle(Message("shrink", {"round": 1, "after": 0, "cut": 3, "send": 1})), "shrink", "cut = 3"),
        (lambda n: n.handle(Message("sync", {"round": 1, "cut": 2}, layers(n, 0, 3))), "sync", "not float32"),
        (lambda n: n.handle(Message("sync", {"round": 1, "cut": 1}, {**layers(n, 0, 1), "moments": torch.ones(2, 3)})),
         "sync", "no whole number of layers"),
        (lambda n: n.handle(Message("report", {"round": 0, "after": 0}, {"gaps": torch.tensor([10**9])})),
         "report", "a column that isn't"),
        (lambda n: n.handle(Message("report", {"round": 0, "after": 0}, {"gaps": torch.tensor([5, -1])})),
         "report", "a column that isn't"),
        (lambda n: n.handle(Message("report", {"round": 0, "after": 0}, {"gaps": torch.ones(2)})),
         "report", "whole numbers"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(ask: Ask, op: str, words: str) -> None:
    node = node_of()
    sync(node)
    before = state_of(node)
    assert_refused(ask(node), op, words)
    after = state_of(node)
    for name in ("parameters", "moments", "steps"):
        if op != "give":  # there a whole step came before
            assert torch.equal(before[name], after[name])


def test_exchanged_sides_must_come_along() -> None:
    node = node_of("sfl")
    assert_refused(
        node.handle(Message("sync", {"round": 0, "cut": 2}, layers(node, 0, 2))), "sync", "aren't kept in this scheme"
    )
    sync(node, cut=0)
    fields = {"round": 0, "after": 0, "step": 0, "cut": CUT}
    assert_refused(node.handle(Message("forward", fields)), "forward", "no tensor parameters")
    packet = forward(node)
    assert_refused(node.handle(Message("give", {"round": 0, "after": 0})), "give", "isn't done")
    backward(node, packet)
    side = node.handle(Message("give", {"round": 0, "after": 0})).tensors["parameters"]
    assert not torch.equal(side, layers(node, 0, CUT)["parameters"])


def test_several_steps_in_order() -> None:
    node = node_of("asfl", "training.local_steps=2")
    sync(node)
    assert_refused(forward(node, step=1), "forward", "doesn't follow")
    backward(node, forward(node))
    assert_refused(node.handle(Message("moved", {"round": 0, "after": 0})), "moved", "isn't done")
    backward(node, forward(node, step=1), step=1)
    assert float(node.handle(Message("moved", {"round": 0, "after": 0})).tensors["norm"]) > 0


def test_after_a_failure_inside_it_wants_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of()
    sync(node)

    def breaks(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(node._fleet, "forward", breaks)
    assert_refused(forward(node), "forward", "RuntimeError: out of memory")
    assert_refused(forward(node), "forward", "sync comes first")
    sync(node, 2)
    assert forward(node, 2, after=2).op == "forward"


# ---------------------------------------------------------------------- what it is told at the beginning
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": {"training": {"rounds": -1}}}, "training.rounds = -1 must be"),
        ({"config": {"nonsense": 1}}, "unknown key 'nonsense'"),
        ({"config": None}, "the server's configuration"),
        ({"scheme": "asfll"}, "unknown scheme 'asfll'"),
        ({"client": 4}, "client = 4"),
        ({"threads": 0}, "threads = 0"),
    ],
)
def test_a_bad_welcome_is_refused(change: dict[str, object], words: str) -> None:
    welcome = terms_of(tiny(), "asfl").welcome(0)
    bad = Message(welcome.op, {**welcome.fields, **change})  # type: ignore[dict-item]
    with pytest.raises(AsflError, match=words):
        ClientNode(bad)


def test_the_server_does_not_choose_which_files_are_read(tmp_path: Path) -> None:
    images, labels = np.zeros((40, 8, 8), dtype=np.uint8), np.arange(40) % 10
    for folder in ("servers", "own"):
        (tmp_path / folder).mkdir()
    for file in ("own/pictures.npz", "servers/secret.npz"):
        np.savez(tmp_path / file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    config = tiny(f"data.name={tmp_path / 'servers' / 'pictures.npz'}", "data.folder=/somewhere")
    ClientNode(terms_of(config, "asfl").welcome(0), tmp_path / "own")
    secret = tiny(f"data.name={tmp_path / 'servers' / 'secret.npz'}")
    with pytest.raises(AsflError, match=r"own/secret.npz': no such file"):
        ClientNode(terms_of(secret, "asfl").welcome(0), tmp_path / "own")


def test_it_knows_whether_a_welcome_is_to_the_same_run() -> None:
    terms = terms_of(tiny(), "asfl")
    node = ClientNode(terms.welcome(1))
    assert node.fits(terms.welcome(1))
    assert not node.fits(terms.welcome(2))
    assert not node.fits(terms_of(tiny("scenario.seed=9"), "asfl").welcome(1))


def test_the_largest_message_is_large_enough_and_not_much_more() -> None:
    config = tiny("model.width=1", "training.batch_size=64")
    blueprint = Blueprint.of(config)
    activations = Message("forward", {}, {"carry.0": torch.ones(blueprint.carries[1][0])})
    size = blueprint.layout.num_parameters
    client = Message("state", {}, {"parameters": torch.ones(size), "moments": torch.ones(2, size)})
    largest = max(len(encode(message)) for message in (activations, client))
    assert largest < blueprint.largest_message < largest + 1_200_000
