"""Which clients are there: requests to them, answers until a deadline, who was lost and why, and who is out."""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from torch import Tensor

from asfl.config.errors import AsflError, words_of
from asfl.config.fields import AutoSecond
from asfl.field.measured import Clocks
from asfl.field.messages import A, Link, OpenRequest, RefusedError, Request, Stage
from asfl.field.wire import WireError
from asfl.train.fleet import Bools, Fault, Knowledge

MOST_S = 120.0
LEARN_MOST_S = 600.0
"""Of a whole step without a cut."""
BARREN_ROUNDS = 3
"""The run stops after so many rounds in a row in which all clients that were asked were lost: training has diverged, or
the deadlines are too short."""
BAD_ANSWERS = 3
"""A client loses its place after so many rounds in a row in which its answers of the same stage were wrong."""
LEAST_S = 15.0
"""A machine may be busy with something else for a while."""
_FACTOR, _QUANTILE, _OWN_FACTOR = 20.0, 0.95, 3.0
_LEAST_ANSWERS, _REMEMBERED = 20, 1000
_POLL_S = 0.05
_KEY = 64
"""Digits of a device's key."""
_log = logging.getLogger(__name__)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Patience:
    """How long the server waits."""

    deadline_s: AutoSecond = "auto"
    """For an answer (`field.deadline_s`)."""
    nobody_s: float = 300.0
    """For any client to be reached when a round begins; then the run stops."""

    def most_s(self, stage: Stage) -> float:
        """The deadline of a stage as long as nothing is known of it."""
        if self.deadline_s == "auto":
            return LEARN_MOST_S if stage == "learn" else MOST_S
        return self.deadline_s


class MeasuredDeadlines:
    """The deadlines of stages if they are "auto".

    After 20 answers it is 20 times what 95 % of the latest ones took, but at least 15 s, at least 3 times what this
    client took the last time, and never more than 120 s (600 s for a whole step). A client that was too late has twice
    as long the next time: if the world has become slower, all clients are back after a few rounds.
    """

    def __init__(self) -> None:
        self._took_s: dict[Stage, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._usual_s: dict[Stage, float] = {}
        self._own_s: dict[tuple[Stage, int], float] = {}
        self._late: dict[tuple[Stage, int], int] = {}

    def begin(self) -> None:
        """A round begins."""
        self._usual_s = {
            stage: _FACTOR * float(np.quantile(took_s, _QUANTILE))
            for stage, took_s in self._took_s.items()
            if len(took_s) >= _LEAST_ANSWERS
        }

    def deadline_s(self, stage: Stage, client: int, most_s: float) -> float:
        if stage not in self._usual_s:
            return most_s
        own_s = _OWN_FACTOR * self._own_s.get((stage, client), 0.0)
        wait_s = max(LEAST_S, self._usual_s[stage], own_s)
        return float(min(wait_s * 2.0 ** self._late.get((stage, client), 0), most_s))

    def answered(self, stage: Stage, client: int, seconds: float) -> None:
        self._took_s[stage].append(seconds)
        self._own_s[stage, client] = seconds
        self._late.pop((stage, client), None)

    def too_late(self, stage: Stage, client: int) -> None:
        self._late[stage, client] = min(self._late.get((stage, client), 0) + 1, 16)


class Roster:
    """The clients of a run in the present round."""

    def __init__(self, links: Sequence[Link], patience: Patience, clocks: Clocks | None = None) -> None:
        self._links, self._patience, self._clocks = links, patience, clocks
        self.index = 0
        """The round, counted from 0."""
        none = np.zeros(len(links), dtype=np.bool_)
        self.present: Bools = none.copy()
        """[N] who can be asked: could be reached when the round began, is in sync, and wasn't lost since."""
        self.in_sync: Bools = none.copy()
        """[N] whose state is the one the server believes it to have."""
        self.round_of = np.zeros(len(links), dtype=np.int64)
        """[N] the round in which that state last changed."""
        self.quarantined: Bools = none.copy()
        """[N] who has given wrong answers too often and isn't asked any more."""
        self.keys_out: dict[int, str] = {}
        """By whose keys, where clients have some: the number may be another device's one day, or the key come again."""
        self._keys = self._keys_now()
        self._bad_rounds: dict[tuple[int, str], list[int]] = {}
        """{(client, stage): the latest rounds in a row with wrong answers}"""
        self._good: set[tuple[int, str]] = set()
        """{(client, stage)} with right answers in this round."""
        self._asked: set[int] = set()
        self._wrong: set[int] = set()
        """Who was asked in this round, and whose answers were wrong."""
        self._factors: tuple[dict[int, float], dict[int, float]] = {}, {}
        """Of each client that was bounded, in the round before and in this one: what its answers were multiplied by."""
        self._measured = MeasuredDeadlines()
        self._generations = [link.generation for link in links]
        self._faults: list[Fault] = []
        self._came, self._latest_fault, self._barren = False, "", 0

    # ------------------------------------------------------------------ to and from a checkpoint
    def knowledge(self) -> Knowledge:
        out: Knowledge = {"quarantined": self.quarantined.copy()} if self.quarantined.any() else {}
        if self.keys_out:
            padded = [self.keys_out.get(n, "").encode().ljust(_KEY) for n in range(len(self._links))]
            out["keys_out"] = np.array([list(key) for key in padded], dtype=np.uint8)
        return out

    def restore(self, knowledge: Knowledge) -> None:
        """No client is in sync then."""
        self.quarantined[:] = knowledge.get("quarantined", False)
        keys = [bytes(row.tolist()).decode().strip() for row in knowledge.get("keys_out", ())]
        self.keys_out = {client: key for client, key in enumerate(keys) if key}
        self.round_of[:], self.in_sync[:] = 0, False

    # ------------------------------------------------------------------ a round
    def begin(self, index: int) -> list[int]:
        """Who can be reached but is out of sync."""
        self._check_not_barren()
        self._forgive()
        self.index, self._came, self._latest_fault = index, False, ""
        self._asked, self._wrong, self._factors = set(), set(), (self._factors[1], {})
        self._measured.begin()
        self._notice_new_nodes()
        self._wait_for_any()
        self._notice_new_nodes()
        troubles = self._troubles()
        reachable = np.array([trouble is None for trouble in troubles])
        for client, trouble in enumerate(troubles):
            if trouble is not None:
                self._note(client, "begin", trouble)
        self.present = reachable & self.in_sync
        return np.flatnonzero(reachable & ~self.in_sync).tolist()

    def _troubles(self) -> list[str | None]:
        """[N] why a client can't be asked."""
        return [
            "in quarantine" if out else link.trouble for out, link in zip(self.quarantined, self._links, strict=True)
        ]

    def _keys_now(self) -> list[str]:
        return [getattr(link, "key", "") for link in self._links]

    def _notice_new_nodes(self) -> None:
        """A client whose process was started anew has lost its state, even if its end wasn't noticed; a new device is
        judged by what it does itself.
        """
        before, self._keys = self._keys, self._keys_now()
        for client, key in enumerate(self._keys):
            if key:
                bound_to = self.keys_out.get(client, "")
                self.quarantined[client] = key in self.keys_out.values() or (self.quarantined[client] and not bound_to)
            if before[client] not in ("", key):
                self._bad_rounds = {which: rounds for which, rounds in self._bad_rounds.items() if which[0] != client}
        for client, link in enumerate(self._links):
            if link.generation != self._generations[client]:
                self._generations[client], self.in_sync[client] = link.generation, False

    def ask(self, client: int, request: Request[A], base: Tensor | None = None) -> OpenRequest[A] | None:
        """Send a request to a client; None if it isn't present."""
        if not self.present[client]:
            return None
        self._asked.add(client)
        deadline_s = self._patience.most_s(request.stage)
        if self._patience.deadline_s == "auto":
            deadline_s = self._measured.deadline_s(request.stage, client, deadline_s)
        request = replace(request, round=self.index, after=int(self.round_of[client]))
        return OpenRequest(self._links[client], client, request, deadline_s, base)

    def answer(self, asked: OpenRequest[A] | None, read: Callable[[A], Value]) -> Value | None:
        """What `read` makes of the answer; None, and the client is lost, if there is none or `read` refuses it."""
        if asked is None:
            return None
        client, request, lied = asked.client, asked.request, False
        try:
            answer = asked.answer()
            value = read(answer)
            if self._clocks is not None:
                self._clocks.exchanged(asked, answer)
        except TimeoutError:
            reason = f"no answer within {asked.deadline_s:.3g} s"
            self._measured.too_late(request.stage, client)
        except AsflError as error:
            reason, lied = str(error), isinstance(error, WireError) and not isinstance(error, RefusedError)
        except Exception as error:  # a link may fail in ways of its own; none of them may end the run
            reason = f"{type(error).__name__}: {error}"
        else:
            self._measured.answered(request.stage, client, asked.answered_at - asked.sent_at)
            self._good.add((client, request.stage))
            self._came |= request.teaches
            if request.changes:
                self.round_of[client] = self.index
            return value
        if self._clocks is not None:
            self._clocks.lost(client, request, asked.sent_at)
        self.lose(client, request.stage, reason, lied=lied)
        return None

    def lose(self, client: int, stage: str, reason: str, *, lied: bool) -> None:
        """For this round; who has `lied` too often, for all that follow."""
        self.present[client] = self.in_sync[client] = False
        self._note(client, stage, reason)
        self._latest_fault = f"client {client}, {stage}: {self._faults[-1].reason}"
        if not lied:
            return
        self._wrong.add(client)
        bad_rounds = self._bad_rounds.setdefault((client, stage), [])
        if self.index not in bad_rounds:
            bad_rounds.append(self.index)
        if len(bad_rounds) >= BAD_ANSWERS and not self.quarantined[client]:
            self._put_out(client, f"wrong answers ({stage}) in {len(bad_rounds)} rounds in a row")

    def _put_out(self, client: int, reason: str) -> None:
        self.quarantined[client] = True
        if key := self._keys_now()[client]:
            self.keys_out[client] = key
        self._note(client, "quarantine", f"{reason}; it is out")

    def bounded(self, client: int, factors: Mapping[str, float]) -> None:
        """It goes on; what it has sent counts for less."""
        said = ", ".join(f"{what} × {factor:.3g}" for what, factor in factors.items())
        if client not in self._factors[1]:
            self._note(client, "bounded", f"far larger than the others': {said}")
        self._factors[1][client] = min([self._factors[1].get(client, 1.0), *factors.values()])

    def most_were_wrong(self) -> bool:
        """Looks back at the round that is over: whether not these clients lied, but what they were given was wrong.

        Then only the client is blamed that was bounded most when that was averaged; it is out.
        """
        if len(self._wrong) < 2 or 2 * len(self._wrong) <= len(self._asked):
            return False
        for bad_rounds in self._bad_rounds.values():
            if self.index in bad_rounds:
                bad_rounds.remove(self.index)
        factors = {client: factor for client, factor in self._factors[0].items() if not self.quarantined[client]}
        if factors:
            self._put_out(
                min(factors, key=factors.__getitem__), "most answers to the average it took part in were wrong"
            )
        return True

    def _forgive(self) -> None:
        """Looks back at the round that is over: who answered, and never wrongly, begins anew."""
        for key in self._good:
            if self.index not in self._bad_rounds.get(key, ()):
                self._bad_rounds.pop(key, None)
        self._good.clear()

    def take_faults(self) -> list[Fault]:
        faults, self._faults = self._faults, []
        return faults

    def _note(self, client: int, stage: str, reason: str) -> None:
        reason = words_of(reason)  # some are a client's own
        _log.warning("round %d, %s: client %d: %s", self.index + 1, stage, client, reason)
        self._faults.append(Fault(client, self.index, stage, reason))

    def _check_not_barren(self) -> None:
        """Looks back at the round that is over."""
        if self._came or self._latest_fault:
            self._barren = 0 if self._came else self._barren + 1
        if self._barren >= BARREN_ROUNDS:
            raise AsflError(
                f"all clients that were asked were lost in each of the last {self._barren} rounds up to round "
                f"{self.index + 1} (the latest: {self._latest_fault})"
            )

    def _wait_for_any(self) -> None:
        due = time.monotonic() + self._patience.nobody_s
        if self.quarantined.all():
            raise AsflError(
                f"all {len(self._links)} clients lost their places by round {self.index}: the answers of each were "
                f"wrong {BAD_ANSWERS} rounds in a row"
            )
        while None not in self._troubles():
            if time.monotonic() > due:
                raise AsflError(
                    f"round {self.index + 1}: none of {len(self._links)} clients could be reached for "
                    f"{self._patience.nobody_s:g} s (client 0: {words_of(self._troubles()[0] or '')})"
                )
            time.sleep(_POLL_S)
