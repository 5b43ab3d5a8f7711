"""The ClientApp: one client of the run, from the session message to the bye."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from asfl.config.errors import AsflError, nearest, short
from asfl.field.flower.log import show_log
from asfl.field.flower.run_config import Value
from asfl.field.flower.session import Farewell, Session

_log = logging.getLogger(__name__)
_SIMULATED = ("partition-id", "num-partitions")
"""What Flower's simulation puts into the configuration of its nodes; numbers are dealt out all the same."""

app = ClientApp()


@dataclass(frozen=True)
class NodeConfig:
    """What `flower-supernode --node-config` says about this device."""

    data_dir: Path | None = None
    client: int | None = None
    """Which client this device is; None: whichever the server says."""
    meter: str = "none"
    """How this device knows what it consumes (`asfl.field.measure.meters`)."""

    @classmethod
    def of(cls, node_config: Mapping[str, Value]) -> "NodeConfig":
        known = ("data-dir", "client", "meter")
        for name in node_config:
            if name not in (*known, *_SIMULATED):
                raise AsflError(f"--node-config: unknown key {short(name)}: {nearest(name, known)}")
        folder, client, meter = (node_config.get(name) for name in known)
        if client is not None and (isinstance(client, bool) or not isinstance(client, int) or client < 0):
            raise AsflError(f"--node-config: client = {client!r} must be a whole number ≥ 0")
        return cls(Path(str(folder)) if folder else None, client, str(meter or "none"))


@app.train("session")
def session(message: Message, context: Context) -> Message:
    """Take part in a run until it is over."""
    show_log()
    try:
        farewell = take_part(Session.of(message.content), NodeConfig.of(context.node_config))
    except AsflError as error:
        _log.error("error: %s", error)
        farewell = Farewell("failed", str(error))
    return Message(farewell.content(), reply_to=message)


def take_part(session: Session, node: NodeConfig) -> Farewell:
    """Be the client the session is for, unless this device is another one."""
    if node.client is not None and node.client != session.client:
        _log.info("this device is client %d, not %d", node.client, session.client)
        return Farewell("declined", claim=node.client)
    from asfl.field.stream.client import serve  # with PyTorch, which takes its time

    serve(
        session.address,
        session.token,
        authority=session.authority.encode(),
        data_dir=node.data_dir,
        patience_s=session.patience_s,
        meter=node.meter,
    )
    return Farewell("done")
