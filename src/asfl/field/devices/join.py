"""A device at work: it answers what a run asks, and comes back by itself after whatever happened."""

import logging
import time
from pathlib import Path

from asfl.field.devices.authority import SERVER_NAME
from asfl.field.devices.membership import Membership, renew_if_due
from asfl.field.stream.client import Identity, serve

_log = logging.getLogger(__name__)
_BETWEEN_RUNS_S = 5.0


def work(home: Path, member: Membership, *, meter: str = "none", once: bool = False) -> None:
    """Take part in every run there is, for ever; `once`: in one."""
    while True:
        if renew_if_due(home, member):
            _log.info("the certificate of %s was renewed", member.name)
        key, certificate, authority = member.files(home)
        serve(
            member.stream,
            authority=authority,
            identity=Identity(key, certificate, SERVER_NAME),
            data_dir=Path(member.data) if member.data else None,
            patience_s=float("inf"),
            meter=meter,
        )
        _log.info("the run is over")
        if once:
            return
        time.sleep(_BETWEEN_RUNS_S)
