"""The ServerApp: finds the nodes, sends each a session, trains over their streams."""

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from asfl.engines.scratch import Scratch
from asfl.errors import AsflError
from asfl.field.certificates import Certificates, make_certificates
from asfl.field.flower.log import show_log
from asfl.field.flower.run_config import Order
from asfl.field.flower.sessions import Sessions, wait_for_nodes
from asfl.field.flower.stopping import stopping_after_the_round
from asfl.records import RoundRecord
from asfl.summary import percent
from asfl.units import format_si

_log = logging.getLogger(__name__)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train what the run configuration asks for."""
    show_log()
    try:
        order = Order.of(context.run_config)
        with stopping_after_the_round() as should_stop:
            finished = conduct(grid, order, should_stop)
    except AsflError as error:
        _log.error("error: %s", "; ".join(str(error).splitlines()))
        raise
    folder = order.folder.absolute()
    _log.info("finished: %s" if finished else "stopped; `flwr run` with the same run-config goes on: %s", folder)


def conduct(grid: Grid, order: Order, should_stop: Callable[[], bool]) -> bool:
    """A run from the first node to the last bye; True if all rounds are done."""
    from asfl.field.engine import terms_for, train  # with PyTorch, which takes its time
    from asfl.field.stream_server import StreamServer
    from asfl.run import check_training, is_finished

    if is_finished(order.folder):
        return True
    check_training(order.config, order.data_dir, real_clients=True)
    nodes = wait_for_nodes(grid, order.config.scenario.clients, order.wait_s, should_stop)
    terms = terms_for(order.config, order.scheme, order.folder, order.threads)
    with _certificates(order.address) as certificates, StreamServer(order.address, terms, certificates) as server:
        sessions = Sessions(grid, server, nodes, certificates.authority.read_text(), order.patience_s)
        sessions.invite(sessions.seats)
        sessions.wait_for_clients(order.wait_s, should_stop)
        _log.info("all %d clients are here; streams at %s", len(sessions.seats), server.address)
        with sessions:
            try:
                return train(
                    terms, order.folder, server.links, data_dir=order.data_dir, on_round=_tell, should_stop=should_stop
                )
            finally:
                sessions.invite_nobody_else()
                server.say_bye()


def _tell(record: RoundRecord) -> None:
    cut = "no cut" if record.cut is None else f"cut {record.mean_cut:.3g}"
    accuracy = "" if record.accuracy is None else f", accuracy {percent(record.accuracy, 1)}"
    arrived = f"{record.arrived_count} of {record.scheduled_count} arrived"
    _log.info("round %d: %s, %s%s, %s", record.round, cut, arrived, accuracy, format_si(record.total_delay_s, "s"))


@contextmanager
def _certificates(address: str) -> Iterator[Certificates]:
    """New ones for every run: its authority comes with the session, so nobody has to be given it before."""
    scratch = Scratch(Path(tempfile.gettempdir()), "asfl-flower-")
    try:
        yield make_certificates(scratch.folder / "pem", [address.rpartition(":")[0].strip("[]")])
    finally:
        scratch.remove()
