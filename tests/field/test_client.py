"""A client by itself: it does what fits its state, and refuses the rest with a reason and without harm."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from small_runs import agreement_of, tiny

from asfl.config.errors import AsflError
from asfl.data import load_data, partition
from asfl.field.client import ClientNode, _with_own_files
from asfl.field.protocol import messages as msg
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.messages import Answer, AnyRequest
from asfl.field.protocol.shapes import Blueprint
from asfl.field.protocol.wire import Json, pack, unpack
from asfl.train.layout import ModelVectors

CUT = 3
NOW: dict[str, Any] = {"round": 0, "after": 0}
M = TypeVar("M", bound=Answer)


def node_of(scheme: str = "asfl", *overrides: str, client: int = 1) -> ClientNode:
    return ClientNode(agreement_of(tiny(*overrides), scheme).welcome(client))


def layers(node: ClientNode, first: int, last: int, value: float = 0.01) -> ModelVectors:
    a, b = node._layout.parameter_edges, node._layout.statistic_edges
    return ModelVectors(torch.full((int(a[last] - a[first]),), value), torch.ones(int(b[last] - b[first])))


def asked(node: ClientNode, request: AnyRequest) -> Answer:
    """As over a network."""
    return decode(node.answer(encode(request)), Answer)


CODES, VECTOR = msg.Codes(torch.ones(1, dtype=torch.uint8), torch.ones(1), torch.ones(1)), torch.ones(1)


def expect(kind: type[M], answer: Answer) -> M:
    assert isinstance(answer, kind), answer
    return answer


def statistics(node: ClientNode) -> torch.Tensor:
    return layers(node, 0, 1).statistics


def sync(node: ClientNode, round_index: int = 0, cut: int = CUT) -> None:
    assert where(asked(node, msg.Sync(cut, layers(node, 0, cut), round=round_index))) == (round_index, cut)


def where(answer: Answer) -> tuple[int | None, int]:
    found = expect(msg.Where, answer)
    return found.round, found.cut


def forward(
    node: ClientNode, round_index: int = 0, after: int = 0, step: int = 0, cut: int = CUT, bits: int = 32
) -> Answer:
    side = None if node._keeps_sides else layers(node, 0, cut)
    return asked(node, msg.Forward(step, cut, side, bits, round=round_index, after=after))


def backward(node: ClientNode, packet: Answer, round_index: int = 0, step: int = 0, value: float = 1e-3) -> Answer:
    gradients = tuple(torch.full_like(tensor, value) for tensor in expect(msg.Activations, packet).carry)
    return asked(node, msg.Backward(step, CUT, gradients, round=round_index, after=round_index))


def assert_refused(answer: Answer, words: str) -> None:
    assert words in expect(msg.Refusal, answer).reason


def state_of(node: ClientNode, after: int = 0) -> dict[str, torch.Tensor]:
    found = expect(msg.ClientState, asked(node, msg.Gather(memory=True, round=after, after=after)))
    assert found.memory is not None
    parts = {"parameters": found.side.parameters, "moments": found.memory.moments, "steps": found.memory.steps}
    return {name: tensor.clone() for name, tensor in parts.items()}


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
    packet = expect(msg.Activations, forward(node))
    assert packet.carry[0].is_contiguous(memory_format=torch.channels_last)
    norm = expect(msg.Update, backward(node, packet)).norm2
    after = state_of(node)
    moved = (after["parameters"] - before["parameters"]).square().sum()
    assert float(norm) == pytest.approx(float(moved), rel=1e-4)
    assert after["steps"].tolist() == [1] * CUT + [0] * (node._layout.num_units - CUT)


def test_layers_come_and_go() -> None:
    node = node_of()
    sync(node)
    assert where(asked(node, msg.Grow(5, layers(node, CUT, 5, 0.5), round=1, after=0))) == (1, 5)
    a = int(node._layout.parameter_edges[CUT])
    grown = state_of(node, 1)["parameters"]
    assert (grown[:a] == 0.01).all()
    assert (grown[a:] == 0.5).all()
    sent = expect(msg.Side, asked(node, msg.Shrink(CUT, send=True, round=2, after=1))).layers
    assert sent is not None
    assert (sent.parameters == 0.5).all()
    assert len(state_of(node, 2)["parameters"]) == a
    assert expect(msg.Side, asked(node, msg.Shrink(1, send=False, round=3, after=2))).layers is None
    assert where(asked(node, msg.Ping())) == (3, 1)


def test_reported_columns() -> None:
    node = node_of()
    sync(node)
    values = state_of(node)["parameters"]
    columns = np.array([0, 3, 4, len(values) - 1])
    gaps = torch.from_numpy(np.diff(columns, prepend=0))
    assert torch.equal(expect(msg.Values, asked(node, msg.Sample(gaps, **NOW))).values, values[columns])


# ---------------------------------------------------------------------- out of order
def test_nothing_before_a_sync() -> None:
    node = node_of()
    assert_refused(forward(node), "sync comes first")
    assert where(asked(node, msg.Ping())) == (None, 0)


def test_stale_state_is_never_used_silently() -> None:
    node = node_of()
    sync(node, 4)
    assert_refused(forward(node, 5, after=3), "for a state of round 3, but here it is of round 4")
    assert_refused(forward(node, 3, after=4), "round 3 is over")
    expect(msg.Activations, forward(node, 5, after=4))
    assert_refused(forward(node, 6, after=4), "here it is of round 5")


Ask = Callable[[ClientNode], Answer]


def raw(node: ClientNode, op: str, fields: dict[str, Json], tensors: dict[str, torch.Tensor] | None = None) -> Answer:
    """What nobody can declare."""
    return decode(node.answer(pack(op, fields, tensors or {})), Answer)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda n: raw(n, "dance", {}), "'dance' instead of a message of kind request"),
        (lambda n: raw(n, "where", {"cut": 3}), "'where' instead of a message of kind request"),
        (lambda n: decode(n.answer(b"garbage, and more of it"), Answer), "not a message"),
        (lambda n: raw(n, "forward", {"round": 0, "after": 0, "cut": 3}), "step is missing"),
        (lambda n: raw(n, "forward", {"round": True, "after": 0, "step": 0, "cut": 3}), "round = True"),
        (lambda n: raw(n, "ping", {"more": 1}), "more = 1"),
        (lambda n: asked(n, msg.Forward(0, CUT)), "it must say its round"),
        (lambda n: forward(n, cut=CUT + 1), "this client holds 3 layers"),
        (lambda n: forward(n, cut=99), "cut = 99"),
        (lambda n: forward(n, cut=0), "cut = 0"),
        (lambda n: forward(n, step=1), "step = 1"),
        (lambda n: forward(n) and asked(n, msg.Backward(0, CUT, (), **NOW)), "gradients: 0 tensors"),
        (lambda n: asked(n, msg.Backward(0, CUT, (torch.ones(1),), **NOW)), "no forward pass"),
        (lambda n: backward(n, forward(n), step=1), "no forward pass of round 0, step 1"),
        (lambda n: backward(n, forward(n), round_index=1), "meant for a state of round 1"),
        (lambda n: backward(n, forward(n), value=float("nan")), "not finite"),
        (lambda n: forward(n) and asked(n, msg.Backward(0, CUT, (torch.ones(1),), **NOW)), "gradients.0 is float32"),
        (lambda n: forward(n, bits=4) and asked(n, msg.Backward(0, CUT, (torch.ones(1),), **NOW)), "not 0 and 1"),
        (lambda n: forward(n, bits=4) and asked(n, msg.Backward(0, CUT, (), (CODES,), **NOW)), "codes.0.codes is"),
        (lambda n: forward(n) and asked(n, msg.Backward(0, CUT, (), (CODES,), **NOW)), "not 1 and 0 as at 32 bits"),
        (lambda n: asked(n, msg.Upload(1, 4, **NOW)), "isn't done"),
        (lambda n: asked(n, msg.Share(0, 4, VECTOR, **NOW)), "depth = 0 must be 1 … 3"),
        (lambda n: asked(n, msg.Share(CUT + 1, 4, VECTOR, **NOW)), "depth = 4 must be 1 … 3"),
        (lambda n: asked(n, msg.Share(1, 4, statistics(n), VECTOR, **NOW)), "codes must come at 4 bits"),
        (lambda n: asked(n, msg.Share(1, 32, statistics(n), None, CODES, **NOW)), "parameters must come"),
        (lambda n: asked(n, msg.Share(1, 32, VECTOR, VECTOR, **NOW)), "statistics is float32 [1]"),
        (lambda n: asked(n, msg.Share(1, 32, statistics(n), VECTOR, **NOW)), "parameters is float32 [1]"),
        (lambda n: asked(n, msg.Share(1, 8, statistics(n), None, CODES, **NOW)), "codes.codes is uint8"),
        (lambda n: asked(n, msg.Give(**NOW)), "isn't done"),
        (lambda n: asked(n, msg.Moved(**NOW)), "isn't done"),
        (lambda n: asked(n, msg.Grow(2, layers(n, 0, 0), round=1, after=0)), "cut = 2"),
        (lambda n: asked(n, msg.Grow(5, layers(n, CUT, 4), round=1, after=0)), "not float32"),
        (lambda n: asked(n, msg.Grow(5, layers(n, CUT, 5, float("inf")), round=1, after=0)), "not finite"),
        (lambda n: asked(n, msg.Shrink(3, send=True, round=1, after=0)), "cut = 3"),
        (lambda n: asked(n, msg.Sync(2, layers(n, 0, 3), round=1)), "not float32"),
        (lambda n: asked(n, msg.Sync(99, layers(n, 0, 3), round=1)), "cut = 99"),
        (lambda n: asked(n, msg.Sync(1, layers(n, 0, 1), memory_of(n, 3), round=1)), "no whole number of layers"),
        (lambda n: asked(n, msg.Sync(1, layers(n, 0, 1), memory_of(n, 0, -1), round=1)), "memory.steps has -1"),
        (lambda n: asked(n, msg.Sample(torch.tensor([10**9]), **NOW)), "a column that isn't"),
        (lambda n: asked(n, msg.Sample(torch.tensor([5, -1]), **NOW)), "a column that isn't"),
        (lambda n: asked(n, msg.Sample(torch.ones(2), **NOW)), "gaps is float32 [2], not uint8 or int64"),
        (lambda n: asked(n, msg.Probe(answer_bytes=1 << 30)), "answer_bytes = 1073741824"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(ask: Ask, words: str) -> None:
    node = node_of()
    sync(node)
    before = state_of(node)
    assert_refused(ask(node), words)
    after = state_of(node)
    for name in before:
        assert torch.equal(before[name], after[name])


def memory_of(node: ClientNode, width: int, steps: int = 0) -> msg.Memory:
    return msg.Memory(torch.ones(2, width), torch.full((node._layout.num_units,), steps))


def test_kept_sides_are_not_given() -> None:
    node = node_of()
    sync(node)
    backward(node, forward(node))
    assert_refused(asked(node, msg.Give(**NOW)), "client sides are kept")


def test_exchanged_sides_must_come_along() -> None:
    node = node_of("sfl")
    assert_refused(asked(node, msg.Sync(2, layers(node, 0, 2), round=0)), "aren't kept in this scheme")
    sync(node, cut=0)
    assert_refused(asked(node, msg.Forward(0, CUT, **NOW)), "layers are missing")
    packet = forward(node)
    assert_refused(asked(node, msg.Give(**NOW)), "isn't done")
    backward(node, packet)
    side = expect(msg.Side, asked(node, msg.Give(**NOW))).layers
    assert side is not None
    assert not torch.equal(side.parameters, layers(node, 0, CUT).parameters)


def test_several_steps_in_order() -> None:
    node = node_of("asfl", "training.local_steps=2")
    sync(node)
    assert_refused(forward(node, step=1), "doesn't follow")
    backward(node, forward(node))
    assert_refused(asked(node, msg.Moved(**NOW)), "isn't done")
    backward(node, forward(node, step=1), step=1)
    assert float(expect(msg.Update, asked(node, msg.Moved(**NOW))).norm2) > 0


def test_after_a_failure_inside_it_wants_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of()
    sync(node)

    def breaks(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(node._fleet, "forward", breaks)
    assert_refused(forward(node), "RuntimeError: out of memory")
    assert_refused(forward(node), "sync comes first")
    sync(node, 2)
    expect(msg.Activations, forward(node, 2, after=2))


# ---------------------------------------------------------------------- what it is told at the beginning
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"agreement.config": {"training": {"rounds": -1}}}, "training.rounds = -1 must be"),
        ({"agreement.config": {"nonsense": 1}}, "unknown key 'nonsense'"),
        ({"agreement.config": None}, "the server's configuration"),
        ({"agreement.scheme": "asfll"}, "unknown scheme 'asfll'"),
        ({"agreement.threads": 0}, "agreement.threads = 0"),
        ({"agreement": {}}, "'agreement' is there twice"),
        ({"client": 4}, "client = 4"),
    ],
)
def test_a_bad_welcome_is_refused(change: dict[str, Json], words: str) -> None:
    op, fields, tensors = unpack(encode(agreement_of(tiny(), "asfl").welcome(0)))
    with pytest.raises(AsflError, match=words):
        ClientNode(decode(pack(op, {**fields, **change}, tensors), msg.Welcome))


def test_the_server_does_not_choose_which_files_are_read(tmp_path: Path) -> None:
    images, labels = np.zeros((40, 8, 8), dtype=np.uint8), np.arange(40) % 10
    for folder in ("servers", "own"):
        (tmp_path / folder).mkdir()
    for file in ("own/pictures.npz", "servers/secret.npz"):
        np.savez(tmp_path / file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    config = tiny(f"data.name={tmp_path / 'servers' / 'pictures.npz'}")
    ClientNode(agreement_of(config, "asfl").welcome(0), tmp_path / "own")
    secret = tiny(f"data.name={tmp_path / 'servers' / 'secret.npz'}")
    with pytest.raises(AsflError, match=r"own/secret.npz': no such file"):
        ClientNode(agreement_of(secret, "asfl").welcome(0), tmp_path / "own")


@pytest.mark.parametrize("name", ["mine", "~", "..", "other/..", "elsewhere/mine", "."])
def test_nor_folders(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the server calls it, a folder of Hugging Face is looked for inside the client's own."""
    monkeypatch.setattr("asfl.config.names.is_own_folder", lambda name: True)  # it exists, and isn't the client's
    monkeypatch.setattr("asfl.config.tree.is_known", lambda name: True)
    config = tiny().model_copy(update={"data": tiny().data.model_copy(update={"name": name})})
    for given, folder in ((tmp_path, tmp_path), (None, Path.cwd())):
        found = Path(_with_own_files(config, given).data.name)
        assert folder in (found, found.parent)
        assert found.name != ".."


def test_it_knows_whether_a_welcome_is_to_the_same_run() -> None:
    agreement = agreement_of(tiny(), "asfl")
    node = ClientNode(agreement.welcome(1))
    assert node.fits(agreement.welcome(1))
    assert not node.fits(agreement.welcome(2))
    assert not node.fits(agreement_of(tiny("scenario.seed=9"), "asfl").welcome(1))


def test_the_largest_message_is_large_enough_and_not_much_more() -> None:
    config = tiny("model.width=1", "training.batch_size=64")
    blueprint = Blueprint.of(config)
    shapes = blueprint.shapes
    activations = msg.Activations(torch.ones(64, dtype=torch.int64), (torch.ones(shapes.carries[1][0]),))
    size, units = shapes.layout.num_parameters, torch.ones(shapes.layout.num_units, dtype=torch.int64)
    client = msg.ClientState(ModelVectors(torch.ones(size), torch.ones(0)), msg.Memory(torch.ones(2, size), units))
    largest = max(len(encode(message)) for message in (activations, client))
    assert largest < blueprint.largest_message < largest + 1_200_000
