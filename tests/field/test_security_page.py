"""docs/security.md: its numbers are those of the code, and whatever a client can say has a place in its tables."""

import ast
import re
from pathlib import Path

import pytest

from asfl.config import Robustness, load_config
from asfl.field import clocks, messages as msg, stream as server
from asfl.field.clocks import MOST_CLIENT_W
from asfl.field.outliers import FACTOR, MEMORY_ROUNDS
from asfl.field.roster import Patience
from asfl.field.stream import CHUNK, GREETING_LIMIT
from asfl.field.wire import HEADER_LIMIT, MOST_LETTERS, MOST_SECONDS, MOST_SQUARE, MOST_WEIGHT
from asfl.runs import http_server

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
        f"the largest and smallest {'fifth' if Robustness().trim == 1 / 5 else '?'} of each number",
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
    assert [words for words in (*LEAVES.values(), "its first layers") if words not in table] == []


# ---------------------------------------------------------------------- nothing is executed
def test_no_code_here_could_unpickle_or_run_what_arrives() -> None:
    """Ray does, as the page says."""
    unsafe = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "runpy", "eval", "exec", "compile", "load"}
    for file in (ROOT / "src" / "asfl" / "field").rglob("*.py"):
        if file.name == "ray.py":
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
