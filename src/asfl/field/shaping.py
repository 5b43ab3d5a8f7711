"""Links made slow on purpose, so that one machine can show what a bad network does.

A profile is a TOML file with a table per change:

    [[link]]
    client = 3              # without it: all clients
    from_round = 10         # without it: from the beginning
    uplink_bps = "2 Mbit/s"
    downlink_bps = "8 Mbit/s"
    latency_s = "20 ms"     # of a request and its answer

A later table replaces an earlier one. The client keeps to it: a message waits as long as a link of that rate would have
taken, so every transport can be shaped, and the server only sees that it takes longer.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from asfl.config.errors import AsflError
from asfl.config.fields import BitPerSecond, Count, Index, NonNegativeSecond, Section, explain
from asfl.config.files import parse_toml, read_text


class ShapedLink(Section):
    """How a link is from a round on."""

    client: Index | None = None
    """Of which client; None: of all."""
    from_round: Count = 1
    """Counted from 1."""
    uplink_bps: BitPerSecond | None = None
    """None: as fast as it is."""
    downlink_bps: BitPerSecond | None = None
    latency_s: NonNegativeSecond = 0.0

    def seconds(self, num_bytes: int, rate_bps: float | None) -> float:
        """How long a request, or an answer, takes on a link of this rate."""
        return self.latency_s / 2 + (8 * num_bytes / rate_bps if rate_bps else 0.0)


class _Profile(Section):
    link: tuple[ShapedLink, ...] = ()


UNSHAPED = ShapedLink()


def read_profile(file: str | Path, clients: int) -> tuple[ShapedLink, ...]:
    """The links of a profile, in the order of the file."""
    try:
        profile = _Profile.model_validate(parse_toml(read_text(Path(file)), str(file)))
    except AsflError as error:
        raise AsflError(f"field.shaping: {error}") from None
    except ValidationError as error:
        raise AsflError(f"field.shaping: {file}: {explain(error, _Profile)}") from None
    for link in profile.link:
        if link.client is not None and link.client >= clients:
            raise AsflError(
                f"field.shaping: {file}: client = {link.client}, but there are {clients}: 0 … {clients - 1}"
            )
    return profile.link


def links_of(client: int, links: Sequence[ShapedLink]) -> tuple[ShapedLink, ...]:
    """Those that concern a client."""
    return tuple(link for link in links if link.client in (None, client))


def link_at(round_number: int, links: Sequence[ShapedLink]) -> ShapedLink:
    """The one that holds in a round (counted from 1), among those of one client."""
    return next((link for link in reversed(links) if link.from_round <= round_number), UNSHAPED)


class Pace:
    """Keeps a client to its links."""

    def __init__(self, links: Sequence[ShapedLink]) -> None:
        self._links, self._round = links, 1

    def down(self, num_bytes: int, round_number: int | None) -> None:
        """A request of a round has come, or of the same round as the one before."""
        self._round = self._round if round_number is None else round_number
        link = link_at(self._round, self._links)
        _wait(link.seconds(num_bytes, link.downlink_bps))

    def up(self, num_bytes: int) -> None:
        """Its answer goes."""
        link = link_at(self._round, self._links)
        _wait(link.seconds(num_bytes, link.uplink_bps))


def _wait(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)
