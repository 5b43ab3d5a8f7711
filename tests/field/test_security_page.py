"""docs/security.md: its numbers are those of the code, and whatever a client can say has a place in its tables."""

import ast
import re
from pathlib import Path

import pytest
import torch

from asfl.config import load_config
from asfl.field.measure import clocks
from asfl.field.measure.estimates import MOST_CLIENT_W
from asfl.field.outliers import FACTOR, MEMORY_ROUNDS
from asfl.field.protocol import messages as msg
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.messages import MOST_SECONDS, MOST_SQUARE, MOST_WEIGHT
from asfl.field.protocol.wire import HEADER_LIMIT, MOST_LETTERS, WireError
from asfl.field.roster import Patience
from asfl.field.stream import server
from asfl.field.stream.framing import CHUNK, GREETING_LIMIT
from asfl.runs import http_server
from asfl.train.layout import ModelVectors
from asfl.train.state import Combining

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
WORDS = {1: "one", 2: "two", 3: "three", 8: "eight", 10: "ten"}


def ten_to(value: float) -> str:
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in f"{value:e}".partition("e+")[2].lstrip("0"))


@pytest.mark.parametrize(
    "sentence",
    [
        f"two calls of {http_server.MOST_BYTES >> 10} KiB are answered",
        f"{http_server.PLACES} connections each, for {http_server.WITHIN_S:g} s",
        f"Chunks are {CHUNK >> 20} MiB at most",
        f"Before its first word a client may send {round(GREETING_LIMIT / HEADER_LIMIT)} MiB",
        f"for {WORDS[round(server.READY_WITHIN_S / 60)]} minutes at most",
        f"two streams per client and {WORDS[server._SPARE_STREAMS]} more",
        f"cut to {MOST_LETTERS} letters",
        f"sampled parameters | −{ten_to(MOST_WEIGHT)} … {ten_to(MOST_WEIGHT)} |",
        f"| ‖update‖² | 0 … {ten_to(MOST_SQUARE)} |",
        f"| −{ten_to(MOST_SQUARE)} … {ten_to(MOST_SQUARE)}; variances and weights from 0 on |",
        f"| loss | 0 … {ten_to(MOST_WEIGHT)} |",
        f"| 0 … {ten_to(MOST_SECONDS)} s, and never more than the server waited |",
        f"at most {MOST_CLIENT_W / 1e3:g} kW since it was last read, and {clocks._MOST_AT_ONCE_J / 1e3:g} kJ",
        f"of this round and of the {WORDS[MEMORY_ROUNDS]} before",
        f"max(log {FACTOR:g}, 5 · 1.4826 · MAD)",
        f"{WORDS[Patience().bad_answers].capitalize()} rounds in a row",
        f"the largest and smallest {'fifth' if Combining().trim == 1 / 5 else '?'} of each number",
        f"two connections per client and {server._STRANGERS} more",
        f"after {server._QUIET_MS / 1e3:g} s, a",
        f"{server.RESERVED_FILES} open files are left",
    ],
)
def test_its_numbers_are_those_of_the_code(sentence: str) -> None:
    assert sentence in re.sub(r"\s+", " ", PAGE)


# ---------------------------------------------------------------------- what reaches the server
LEAVES = {
    msg.Activations: "activations at the cut, and labels",
    msg.Side: "the layers above the new cut",
    msg.Uploaded: "its first layers",
    msg.Projected: "random sums of its parameters",
    msg.Values: "a sample of its parameters",
    msg.ClientState: "the whole client side",
    msg.Update: "‖update‖²",
    msg.Where: "how many images it has",
    msg.Scored: "of those it holds out, how many the model gets right",
    msg.Calibrated: "running statistics",
    msg.Probed: "how long each layer takes",
    msg.Refusal: "why it refuses",
}


def test_every_answer_is_in_the_table() -> None:
    table = PAGE.partition("| reaches the server |")[2].partition("\n\n")[0]
    assert LEAVES.keys() == set(msg.Answer.__subclasses__())
    assert [words for words in LEAVES.values() if words not in table] == []


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def layers(parameter: float, statistic: float) -> ModelVectors:
    return ModelVectors(vector(parameter), vector(statistic))


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        (msg.Side(layers(MOST_WEIGHT, -MOST_SQUARE)), msg.Side(layers(-1.1 * MOST_WEIGHT, 0))),
        (msg.ClientState(layers(-MOST_WEIGHT, MOST_SQUARE)), msg.ClientState(layers(0, 1.1 * MOST_SQUARE))),
        (
            msg.ClientState(layers(0, 0), msg.Memory(vector(MOST_SQUARE)[None], torch.zeros(1, dtype=torch.int64))),
            msg.ClientState(layers(0, 0), msg.Memory(vector(-2e12)[None], torch.zeros(1, dtype=torch.int64))),
        ),
        (msg.Values(vector(MOST_WEIGHT)), msg.Values(vector(1.1 * MOST_WEIGHT))),
        (msg.Uploaded(vector(0), vector(MOST_WEIGHT)), msg.Uploaded(vector(0), vector(float("nan")))),
        (msg.Update(vector(MOST_SQUARE)[0], vector(MOST_WEIGHT)[0]), msg.Update(vector(-1e-3)[0])),
        (msg.Update(vector(0)[0], vector(0)[0]), msg.Update(vector(0)[0], vector(1.1 * MOST_WEIGHT)[0])),
        (msg.Where(1, busy_s=MOST_SECONDS, battery=1.0), msg.Where(1, busy_s=-1.0)),
        (msg.Where(1, battery=0.0), msg.Where(1, battery=1.01)),
        (msg.Where(1, samples=1), msg.Where(1, samples=0)),
    ],
)
def test_ranges_are_as_the_table_says(within: msg.Answer, beyond: msg.Answer) -> None:
    decode(encode(within), msg.Answer)
    with pytest.raises(WireError):
        decode(encode(beyond), msg.Answer)


# ---------------------------------------------------------------------- nothing is executed
def test_no_code_here_could_unpickle_or_run_what_arrives() -> None:
    """Ray does, as the page says."""
    unsafe = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "runpy", "eval", "exec", "compile", "load"}
    for file in (ROOT / "src" / "asfl" / "field").rglob("*.py"):
        if file.parent.name == "ray":
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = set()
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module or ""}
            elif isinstance(node, ast.Call):
                names = {getattr(node.func, "id", "")}
                if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("torch", "np"):
                    names = {node.func.attr}
            assert not names & unsafe, file


def test_robust_rules_and_noise_are_off_unless_wanted() -> None:
    config = load_config("demo").config
    assert (config.robust.average, config.robust.clip, config.privacy.noisy) == ("mean", 0.0, False)
