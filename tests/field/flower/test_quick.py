"""How soon Flower notices that something died, and how long it waits for something to start."""

import subprocess
import sys

from waiting import LONG_S

SCRIPT = """
from asfl.field.flower import quick
for name in quick.COMMANDS:
    quick.loaded(name)
quick.notice_sooner()

from flwr.supercore import heartbeat
from flwr.supercore.corestate import in_memory_corestate, sql_corestate
from flwr.supernode import fleet_http_connection

for module in (in_memory_corestate, sql_corestate):
    started_s = module.HEARTBEAT_DEFAULT_INTERVAL
    print(started_s, module.HEARTBEAT_PATIENCE * started_s)
print(heartbeat.HEARTBEAT_DEFAULT_INTERVAL, fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL)
"""


def test_starts_may_take_longer_than_silences() -> None:
    """In a process of its own: Flower's constants are changed."""
    shown = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=LONG_S, check=True)
    assert shown.stdout.split("\n")[:2] == ["60 20.0"] * 2, shown.stderr
    assert shown.stdout.split("\n")[2] == "10 10"
