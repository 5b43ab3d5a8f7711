"""The framing of TensorBoard's event files, which are TFRecord files.

A record is its length (8 bytes, little-endian), a checksum of those, the data, and a checksum of the data. TensorBoard
has a writer for it, but importing that takes ten times as long as everything else tracking with TensorBoard does.
"""

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C (Castagnoli), bits reversed."""


def framed(data: bytes) -> bytes:
    """A record as it stands in the file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))


def read_records(file: Path) -> Iterator[bytes]:
    """The data of every record, up to the first that is torn."""
    content, start = file.read_bytes(), 0
    while start + 12 <= len(content):
        length, crc = struct.unpack_from("<QI", content, start)
        end = start + 12 + length
        if crc != _masked_crc(content[start : start + 8]) or end + 4 > len(content):
            return
        data = content[start + 12 : end]
        if struct.unpack_from("<I", content, end) != (_masked_crc(data),):
            return
        yield data
        start = end + 4


def _masked_crc(data: bytes) -> int:
    """CRC-32C, turned and shifted as TFRecord wants it, so that a checksum of checksums is still worth something."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    """The checksum of every single byte."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
