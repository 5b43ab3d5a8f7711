"""A network of its own, with nothing in it but a loopback address that nobody else on this machine reaches.

`python private_network.py` makes one, says "ready", and holds it until its standard input ends. Linux lets any user
make one, inside a user namespace that maps only themselves; where an administrator forbids it, it says why. Standard
library only: a process that has threads can't do this.
"""

import ctypes
import os
import socket
import struct
import sys
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_REQUEST = "16sH14x"
"""struct ifreq: a name and flags."""


def main() -> None:
    if sys.platform != "linux":
        sys.exit("only Linux has network namespaces")
    try:
        _make()
        _loopback_up()
    except OSError as error:
        sys.exit(f"a private network can't be made here: {error.strerror}")
    print("ready", flush=True)
    sys.stdin.read()


def _make() -> None:
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:  # root may, and stays who it is
        return
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    here = Path("/proc/self")
    (here / "setgroups").write_text("deny")
    (here / "uid_map").write_text(f"{user} {user} 1")
    (here / "gid_map").write_text(f"{group} {group} 1")


def _loopback_up() -> None:
    import fcntl  # which only Unix has

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack(_REQUEST, b"lo", 0))
        (_, flags) = struct.unpack(_REQUEST, asked)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(_REQUEST, b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    main()
