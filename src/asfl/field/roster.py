"""Which clients are there: requests to them, answers until a deadline, and who was lost and why."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from asfl.config import Deadlines, Network
from asfl.config.errors import AsflError
from asfl.field.links import Link, OpenRequest
from asfl.field.measure.clocks import Clocks
from asfl.field.protocol.messages import A, Request
from asfl.train.fleet import Bools, Fault

_log = logging.getLogger(__name__)
_POLL_S = 0.05
Value = TypeVar("Value")


@dataclass(frozen=True)
class Patience:
    """How long the server waits."""

    deadlines: Deadlines = field(default_factory=Deadlines)
    nobody_s: float = 300.0
    """For somebody to be reached at all when a round begins; then the run stops."""
    barren_rounds: int = 3
    """The run stops after so many rounds in a row in which everybody who was asked was lost: training has diverged, or
    the deadlines are too short."""

    @classmethod
    def of(cls, network: Network) -> "Patience":
        """As configured."""
        return cls(network.deadlines, nobody_s=network.nobody_s)


class Roster:
    """The clients of a run in the present round."""

    def __init__(self, links: Sequence[Link], patience: Patience, clocks: Clocks | None = None) -> None:
        self._links, self._patience, self._clocks = links, patience, clocks
        self.index = 0
        """The round, counted from 0."""
        nobody = np.zeros(len(links), dtype=np.bool_)
        self.present: Bools = nobody.copy()
        """[N] who can be asked: could be reached when the round began, is in sync, and wasn't lost since."""
        self.in_sync: Bools = nobody.copy()
        """[N] whose state is the one the server believes it to have."""
        self.round_of = np.zeros(len(links), dtype=np.int64)
        """[N] the round in which that state last changed."""
        self._generations = [link.generation for link in links]
        self._faults: list[Fault] = []
        self._came, self._latest_fault, self._barren = False, "", 0

    def begin(self, index: int) -> list[int]:
        """Who can be reached but is out of sync."""
        self._check_not_barren()
        self.index, self._came, self._latest_fault = index, False, ""
        self._wait_for_somebody()
        self._notice_new_nodes()
        troubles = [link.trouble for link in self._links]
        reachable = np.array([trouble is None for trouble in troubles])
        for client, trouble in enumerate(troubles):
            if trouble is not None:
                self._note(client, "begin", trouble)
        self.present = reachable & self.in_sync
        return np.flatnonzero(reachable & ~self.in_sync).tolist()

    def _notice_new_nodes(self) -> None:
        """A client whose process was started anew has lost its state, even if nobody saw it go."""
        for client, link in enumerate(self._links):
            if link.generation != self._generations[client]:
                self._generations[client], self.in_sync[client] = link.generation, False

    def ask(self, client: int, request: Request[A]) -> OpenRequest[A] | None:
        """Send a request to a client; None if it isn't present."""
        if not self.present[client]:
            return None
        deadline_s: float = getattr(self._patience.deadlines, f"{request.stage}_s")
        request = replace(request, round=self.index, after=int(self.round_of[client]))
        return OpenRequest(self._links[client], client, request, deadline_s)

    def answer(self, asked: OpenRequest[A] | None, read: Callable[[A], Value]) -> Value | None:
        """What `read` makes of the answer; None, and the client is lost, if there is none or `read` refuses it."""
        if asked is None:
            return None
        client, request = asked.client, asked.request
        try:
            exchange = asked.exchange()
            value = read(exchange.answer)
            if self._clocks is not None:
                self._clocks.exchanged(exchange)
        except TimeoutError:
            reason = f"no answer within {asked.deadline_s:g} s"
        except AsflError as error:
            reason = str(error)
        except Exception as error:  # a link may fail in ways of its own; none of them may end the run
            reason = f"{type(error).__name__}: {error}"
        else:
            self._came |= request.teaches
            if request.changes:
                self.round_of[client] = self.index
            return value
        if self._clocks is not None:
            self._clocks.lost(client, request, asked.sent_at)
        self.present[client] = self.in_sync[client] = False
        self._latest_fault = f"client {client}, {request.stage}: {reason}"
        self._note(client, request.stage, reason)
        return None

    def take_faults(self) -> list[Fault]:
        faults, self._faults = self._faults, []
        return faults

    def _note(self, client: int, stage: str, reason: str) -> None:
        # Some reasons are a client's own words.
        reason = "".join(letter if letter.isprintable() else "?" for letter in reason)
        _log.warning("round %d, %s: client %d is lost: %s", self.index + 1, stage, client, reason)
        self._faults.append(Fault(client, self.index, stage, reason))

    def _check_not_barren(self) -> None:
        """Looks back at the round that is over."""
        if self._came or self._latest_fault:
            self._barren = 0 if self._came else self._barren + 1
        if self._barren >= self._patience.barren_rounds:
            raise AsflError(
                f"everybody who was asked was lost in each of the last {self._barren} rounds up to round "
                f"{self.index + 1} (the latest: {self._latest_fault})"
            )

    def _wait_for_somebody(self) -> None:
        due = time.monotonic() + self._patience.nobody_s
        while all(link.trouble is not None for link in self._links):
            if time.monotonic() > due:
                raise AsflError(
                    f"round {self.index + 1}: none of {len(self._links)} clients could be reached for "
                    f"{self._patience.nobody_s:g} s (client 0: {self._links[0].trouble})"
                )
            time.sleep(_POLL_S)
