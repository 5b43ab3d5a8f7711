"""File descriptors: every connection takes one, also a stranger's, and without any left no file can be written."""

import sys
from contextlib import suppress

from asfl.config.errors import AsflError

RESERVED = 256
"""For everything that isn't a connection: records, checkpoints, the data, PyTorch, trackers."""
_STRANGERS = 256
"""Connections that may be there besides those of the clients, which may come anew before their old ones are gone."""


def allowed_connections(clients: int) -> int:
    """How many connections a server of so many clients takes at once.

    The soft limit of this process is raised as far as that needs, and as it may.
    """
    wanted = 2 * clients + _STRANGERS
    if sys.platform == "win32":  # which has no such limit
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - RESERVED)
    if allowed < 2 * clients:
        raise AsflError(
            f"{clients} clients need {2 * clients + RESERVED} open files, but this process may have {soft} "
            "(`ulimit -n` shows the limit; an administrator can raise it)"
        )
    return allowed
