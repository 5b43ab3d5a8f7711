"""A server that dies at any moment goes on with its file of keys: nobody is locked out, nothing used opens again."""

import json
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from small_runs import CLIENTS, agreement_of, tiny

from asfl.config.errors import AsflError
from asfl.field.stream.access import Access, AccessError, _digest
from asfl.field.stream.keys import KeyFile
from asfl.field.stream.server import StreamServer

AGREEMENT = agreement_of(tiny(), "asfl")
Value = TypeVar("Value")


# ---------------------------------------------------------------------- any order of events
class ServerDiesError(Exception):
    """At a moment the test has chosen."""


@dataclass
class Disk:
    content: list[list[bytes]] | None = None
    dies: str | None = None


@dataclass(frozen=True)
class DyingFile(KeyFile):
    """In memory; writing it can be the last thing a server does, or the first it doesn't manage to do."""

    path: Path = Path("nowhere")
    run: str = ""
    disk: Disk = field(default_factory=Disk)

    def exists(self) -> bool:
        return self.disk.content is not None

    def read(self, num_clients: int) -> list[list[bytes]]:
        assert self.disk.content is not None
        return [list(digests) for digests in self.disk.content]

    def write(self, valid: Sequence[Sequence[bytes]]) -> None:
        if self.disk.dies == "before the write":
            raise ServerDiesError
        self.disk.content = [list(digests) for digests in valid]
        if self.disk.dies == "after the write":
            raise ServerDiesError


@dataclass(eq=False)
class Call:
    """A connection of the client, as far as it has come."""

    shown: str
    offered: str | None = None
    """By the server."""
    heard: bool = False
    """The client has the welcome, and has said so."""


WHEN = st.sampled_from([None] * 8 + ["before the write", "after the write"])


class TheDoor(RuleBasedStateMachine):
    """One honest client, a network that delays and loses, a server that dies, and somebody who plays back."""

    def __init__(self) -> None:
        super().__init__()
        self.file = DyingFile()
        self.access = Access(1, self.file)
        self.held = self.access.tokens[0]
        """What the client would show now."""
        self.proven = self.held
        """The latest that the client has shown or confirmed: whatever is older is void."""
        self.seen = [self.held]
        """By the eavesdropper: everything."""
        self.void: set[str] = set()
        self.on_the_way: list[Call] = []
        """Calls the server hasn't read yet; the client may have given them up."""
        self.said: list[Call] = []
        """Calls on which the client has said that it has its offer, and the server hasn't read that yet."""
        self.call: Call | None = None
        """The one the client hasn't given up."""

    @rule()
    @precondition(lambda self: len(self.on_the_way) < 6)
    def client_calls(self) -> None:
        """Whatever it called before, it has given up."""
        self.call = Call(self.held)
        self.on_the_way.append(self.call)

    @rule(data=st.data(), dies=WHEN)
    @precondition(lambda self: self.on_the_way)
    def server_reads_a_call(self, data: st.DataObject, dies: str | None) -> None:
        call = data.draw(st.sampled_from(self.on_the_way))
        self.on_the_way.remove(call)
        try:
            _, call.offered = self._server(dies, lambda: self.access.admit(call.shown)) or (0, None)
        except AccessError:
            assert call is not self.call, "an honest client was refused"
            return
        if call.shown != self.proven and (call.offered is not None or dies == "after the write"):
            self._proven(call.shown)
        if call.offered is not None:
            self.seen.append(call.offered)

    @rule()
    @precondition(lambda self: self.call is not None and self.call.offered is not None and not self.call.heard)
    def client_hears_the_welcome(self) -> None:
        assert self.call is not None
        assert self.call.offered is not None
        self.held, self.call.heard = self.call.offered, True
        self.said.append(self.call)

    @rule(data=st.data(), dies=WHEN)
    @precondition(lambda self: self.said)
    def server_hears_ready(self, data: st.DataObject, dies: str | None) -> None:
        call = data.draw(st.sampled_from(self.said))
        self.said.remove(call)
        offered = call.offered
        assert offered is not None
        confirmed = self._server(dies, lambda: self.access.confirm(0, offered))
        if confirmed is False:
            assert call is not self.call, "an honest client was cut off"
        elif confirmed or dies == "after the write":
            self._proven(offered)

    @rule(who=st.sampled_from(["nobody"] * 4 + ["server", "client"]), dies=WHEN)
    def somebody_dies(self, who: str, dies: str | None) -> None:
        if who == "server":
            self._restart()
        elif who == "client":  # and gets a new token; if the server dies over that, it is asked again
            token = self._server(dies, lambda: self.access.renew(0)) or self.access.renew(0)
            self.seen.append(token)
            self._proven(token)
            self.held, self.call, self.said, self.on_the_way = token, None, [], []

    @rule(data=st.data())
    @precondition(lambda self: self.void)
    def somebody_plays_back(self, data: st.DataObject) -> None:
        used = data.draw(st.sampled_from(sorted(self.void, key=self.seen.index)))
        with pytest.raises(AccessError):
            self.access.admit(used)

    @invariant()
    def the_client_can_come_in_whatever_happens_next(self) -> None:
        assert _digest(self.held) in self.access._valid[0]
        assert _digest(self.held) in self.file.read(1)[0]

    @invariant()
    def what_is_void_stays_void(self) -> None:
        void = {_digest(credential) for credential in self.void}
        assert void.isdisjoint(self.access._valid[0])
        assert void.isdisjoint(self.file.read(1)[0])

    def _proven(self, credential: str) -> None:
        self.proven = credential
        self.void |= set(self.seen) - {credential}

    def _server(self, dies: str | None, does: Callable[[], Value]) -> Value | None:
        """None if it died over it."""
        self.file.disk.dies = dies
        try:
            return does()
        except ServerDiesError:
            self._restart()
            return None
        finally:
            self.file.disk.dies = None

    def _restart(self) -> None:
        """All streams end with it."""
        self.file.disk.dies = None
        self.access = Access(1, self.file, restarted=True)
        assert self.access.tokens == []
        self.on_the_way, self.said, self.call = [], [], None


TestTheDoor = TheDoor.TestCase
TestTheDoor.settings = settings(max_examples=300, stateful_step_count=30)


# ---------------------------------------------------------------------- the file
@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile.of(tmp_path / "keys.json", AGREEMENT)


def test_who_was_let_in_is_let_in_by_the_next_server(file: KeyFile) -> None:
    first = Access(CLIENTS, file)
    _, held = first.admit(first.tokens[1])
    first.confirm(1, held)
    second = Access(CLIENTS, file, restarted=True)
    with pytest.raises(AccessError, match="used before"):
        second.admit(first.tokens[1])
    client, after = second.admit(held)
    assert client == 1
    assert second.confirm(1, after)
    assert second.admit(first.tokens[2])[0] == 2  # whoever hasn't come yet still has its token
    third = Access(CLIENTS, file, restarted=True)
    with pytest.raises(AccessError):
        third.admit(held)
    assert third.admit(after)[0] == 1


def test_only_the_owner_reads_it_and_no_secret_is_in_it(file: KeyFile) -> None:
    access = Access(CLIENTS, file)
    secrets = [*access.tokens, access.admit(access.tokens[0])[1], access.renew(3)]
    text = file.path.read_text()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert not any(secret.partition(".")[2] in text for secret in secrets)
    assert [path.name for path in file.path.parent.iterdir()] == ["keys.json"]


def test_a_new_token_survives_too(file: KeyFile) -> None:
    access = Access(CLIENTS, file)
    token = access.renew(2)
    again = Access(CLIENTS, file, restarted=True)
    with pytest.raises(AccessError):
        again.admit(access.tokens[1].replace("1.", "2.", 1))
    assert again.admit(token)[0] == 2
    assert again.admit(again.renew(0))[0] == 0


def test_if_it_cannot_be_written_nothing_has_changed(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(CLIENTS, file)
    _, offered = access.admit(access.tokens[0])

    def full(*_: object, **__: object) -> None:
        raise AsflError("can't write keys.json: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("asfl.field.stream.keys.write_whole", full)
        for change in (
            lambda: access.admit(access.tokens[0]),
            lambda: access.confirm(0, offered),
            lambda: access.renew(0),
        ):
            with pytest.raises(AsflError, match="No space left"):
                change()
    assert access.confirm(0, offered)
    assert access.admit(offered)[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.unlink(), "there is no file"),
        (lambda path: path.write_text("{"), "not JSON"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not text"),
        (lambda path: path.write_text("[" * 100_000), "not JSON"),
        (lambda path: path.write_text("[]"), "must have format, run and clients"),
        (lambda path: rewrite(path, format=2), "format 2, but this asfl reads format 1"),
        (lambda path: rewrite(path, run="ab" * 32), "another configuration or scheme"),
        (lambda path: rewrite(path, clients=[]), "is damaged"),
        (lambda path: rewrite(path, clients=[["ab"]] * CLIENTS), "is damaged"),
        (lambda path: rewrite(path, clients=[[]] * CLIENTS), "is damaged"),
        (lambda path: rewrite(path, clients={"0": []}), "is damaged"),
        (lambda path: path.chmod(0o666), "can be written to by others"),
        (lambda path: (path.unlink(), path.mkdir()), "can't read"),
    ],
)
def test_a_missing_foreign_or_broken_file_is_one_clear_error(
    change: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    with StreamServer("127.0.0.1:0", AGREEMENT, keys=path) as server:
        address = server.address
    change(path)
    with pytest.raises(AsflError, match=words) as refused:
        StreamServer(address, AGREEMENT, keys=path, restarted=True)
    assert "\n" not in str(refused.value)


def rewrite(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_keys_of_another_run_are_refused_but_not_for_how_long_one_waits(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    KeyFile.of(path, AGREEMENT).write([[bytes(32)]] * CLIENTS)
    for same in (AGREEMENT, replace(AGREEMENT, config=tiny("output.checkpoint_every=3"))):
        assert KeyFile.of(path, same).read(CLIENTS) == [[bytes(32)]] * CLIENTS
    for other in (replace(AGREEMENT, scheme="sfl"), replace(AGREEMENT, config=tiny("scenario.seed=7"))):
        with pytest.raises(AsflError, match="another configuration or scheme"):
            KeyFile.of(path, other).read(CLIENTS)


def test_a_restarted_server_needs_its_keys(tmp_path: Path) -> None:
    with pytest.raises(AsflError, match="needs the keys of the earlier one"):
        StreamServer("127.0.0.1:0", AGREEMENT, restarted=True)
    (tmp_path / "file").touch()
    with pytest.raises(AsflError, match="can't"):
        StreamServer("127.0.0.1:0", AGREEMENT, keys=tmp_path / "file" / "keys.json")
