"""Kills while keys are made: a server and a device, killed at any moment of their first start, go on afterwards.

In a process of its own the server's authority and certificate are made, then a device enrols at a server that lives; it
is killed (SIGKILL) after a random time, and repeated until it gets to its end.
"""

import multiprocessing
import time
from pathlib import Path

import numpy as np

from asfl.field.certificates import Authority, belong_together, certificate_in, key_in
from asfl.field.membership import EnrolmentServer, Membership, Registry, enrol, pasted_code
from studies.torture.counts import Counts, only_errors

FULL, LONG_S, KILLS = 200, 120.0, 4
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["studies.torture.keys"])


@only_errors()
def campaign(share: float, folder: Path, random: np.random.Generator) -> Counts:
    counts, registry = Counts(), Registry(folder / "home")
    with EnrolmentServer("127.0.0.1", 0, Authority.of(folder / "home"), "7400") as enrolment:
        where, usual_s = f"127.0.0.1:{enrolment.server_port}", 0.1
        for number in range(max(2, round(share * FULL / KILLS))):
            home, pasted = folder / str(number), pasted_code(enrolment.fingerprint, registry.invite(1, 1)[0])
            for left in reversed(range(KILLS + 1)):
                began = time.monotonic()
                process = CONTEXT.Process(target=_begin, args=(home, where, pasted, f"device-{number}"))
                process.start()
                process.join(random.random() * 1.2 * usual_s if left else LONG_S)
                counts.tried += process.is_alive()
                if not left:
                    usual_s = time.monotonic() - began
                process.kill()
                process.join()
            _judge(home, process.exitcode, counts)
    return counts


def _begin(home: Path, where: str, pasted: str, name: str) -> None:
    Authority.of(home / "server").server_files()
    if Membership.read(home / "device") is None:
        enrol(home / "device", where, pasted, name, "")


def _judge(home: Path, code: int | None, counts: Counts) -> None:
    member = Membership.read(home / "device")
    if code or member is None:
        counts.defect("lost", f"{home.name} doesn't go on: exit code {code}")
        return
    member.files(home / "device")
    for name in ("authority", "server"):
        certificate = certificate_in(home / "server" / f"{name}.pem")
        if certificate is None or not belong_together(key_in(home / "server" / f"{name}.key"), certificate):
            counts.defect("lost", f"{home.name}: {name} has no key")
    if [*home.rglob(".*.key.*")]:
        counts.defect("silent", f"{home.name}: a key that was half written is left")
