"""The ServerApp: finds the nodes, sends each a session, trains over their streams."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from asfl.config.errors import AsflError
from asfl.config.units import format_si, percent
from asfl.field.flower.log import show_log
from asfl.field.flower.run_config import Order
from asfl.field.flower.sessions import Sessions, wait_for_nodes
from asfl.field.flower.stopping import in_simulation, stopping_after_the_round
from asfl.field.stream.certificates import make_certificates
from asfl.runs.records import RoundRecord
from asfl.runs.watching import ShouldStop

_log = logging.getLogger(__name__)

_SIMULATED_NODES_S = 5.0
"""All of a simulation's nodes are there at once, as many as were ordered."""

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


def conduct(grid: Grid, order: Order, should_stop: ShouldStop) -> bool:
    """A run from the first node to the last bye; True if all rounds are done."""
    from asfl.field.engine import agreement_for, train  # with PyTorch, which takes its time
    from asfl.field.stream.server import StreamServer
    from asfl.runs.folder import is_finished
    from asfl.runs.manifest import run_to_go_on_with
    from asfl.runs.run import check_training

    run_to_go_on_with(order.folder, order.config, order.scheme)  # refuses another run of that name
    if is_finished(order.folder, order.config.for_scheme(order.scheme).training.rounds):
        return True
    check_training(order.config, order.data_dir, real_clients=True)
    nodes_s = _SIMULATED_NODES_S if in_simulation() else order.nodes_s
    nodes = wait_for_nodes(grid, order.config.scenario.clients, nodes_s, should_stop)
    terms = agreement_for(order.config, order.scheme, order.folder, order.threads)
    with TemporaryDirectory(prefix="asfl-flower-") as folder:  # the server reads the files at once
        # New ones for every run: their authority comes with the session, so nobody has to be given it before.
        certificates = make_certificates(Path(folder) / "pem", [order.address.rpartition(":")[0].strip("[]")])
        server = StreamServer(order.address, terms, certificates)
        authority = certificates.authority.read_text()
    with server:
        sessions = Sessions(grid, server, nodes, authority, order.patience_s)
        sessions.invite(sessions.node_of)
        sessions.wait_for_clients(order.wait_s, should_stop)
        _log.info("all %d clients are here; streams at %s", len(sessions.node_of), server.address)
        with sessions:
            try:
                return train(
                    terms,
                    order.folder,
                    server.links,
                    data_dir=order.data_dir,
                    on_round=_tell,
                    should_stop=should_stop,
                    lose_rounds=order.lose_rounds,
                )
            finally:
                sessions.invite_nobody_else()
                server.say_bye()


def _tell(record: RoundRecord) -> None:
    cut = "no cut" if record.cut is None else f"cut {record.mean_cut:.3g}"
    accuracy = "" if record.accuracy is None else f", accuracy {percent(record.accuracy, 1)}"
    arrived = f"{record.arrived_count} of {record.scheduled_count} arrived"
    _log.info("round %d: %s, %s%s, %s", record.round, cut, arrived, accuracy, format_si(record.total_delay_s, "s"))
