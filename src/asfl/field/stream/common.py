"""What both ends of a gRPC stream share. One long-lived stream per client carries everything.

The server is the gRPC server, and it is also the one who asks: its side of the stream carries requests, the client's
side answers. gRPC only moves bytes (`asfl.field.stream.chunks`); there is no schema besides `asfl.field.protocol.wire`.
"""

import ipaddress
import re

from asfl.config.errors import AsflError
from asfl.field.protocol.wire import HEADER_LIMIT
from asfl.field.stream.chunks import CHUNK

SERVICE, METHOD = "asfl.Field", "Work"
CREDENTIAL_KEY, VERSION_KEY = "asfl-credential", "asfl-version"
"""They come with the call itself, before any message is read."""
GREETING_LIMIT = HEADER_LIMIT + (1 << 12)
"""Bytes of a message before both sides know the network."""

Option = tuple[str, int]
SHARED_OPTIONS: list[Option] = [
    ("grpc.max_send_message_length", CHUNK),
    ("grpc.max_receive_message_length", CHUNK),
    ("grpc.max_metadata_size", 1 << 13),
    # A process that died is noticed at once; a machine that vanished without a word, when it doesn't answer a ping. On
    # a slow link a ping stands in line behind megabytes, so it has time.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 120_000),
    ("grpc.http2.ping_timeout_ms", 120_000),
    ("grpc.http2.max_pings_without_data", 0),
]


def check_address(address: str, *, encrypted: bool) -> None:
    """Refuse what isn't host:port, and any way out of this machine that isn't encrypted."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s/]+):(\d{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise AsflError(f"address '{address}': write it as host:port, for example 127.0.0.1:7400 or [::1]:7400")
    if not encrypted and not is_loopback(match[1].strip("[]")):
        raise AsflError(f"address '{address}' is not on this machine, so it needs TLS: give certificates")


def is_loopback(host: str) -> bool:
    """Whether what is sent to this host stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
