"""Download CIFAR: resumable, checked against the published checksum, and unpacked whole or not at all."""

import gzip
import hashlib
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from asfl.config.errors import AsflError
from asfl.config.files import open_ordinary
from asfl.data.cifar import MAX_UNPACKED_BYTES as MAX_BYTES, Cifar

HOME = "https://www.cs.toronto.edu/~kriz/"

TIMEOUT_S = 30.0
"""How long the server may be silent."""

_CHUNK_BYTES = 1 << 16

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there, and how many there will be if the server says so."""


def is_complete(kind: Cifar, folder: Path) -> bool:
    """Whether the binary files lie below `folder`, each of its right size."""
    files = {folder / kind.binary_folder / f"{name}.bin": count for name, count in kind.records.items()}
    return all(file.is_file() and file.stat().st_size == count * kind.record_bytes for file, count in files.items())


def fetch(kind: Cifar, folder: Path, url: str | None = None, progress: Progress | None = None) -> Path:
    """Get the binary archive and unpack it below `folder`; gives the folder with the files.

    1. Download into a `.part` file, continuing one that is there. 2. Compare the checksum. 3. Give it its name.
    4. Unpack beside the target and move there. An archive that is there and right is not downloaded again.
    """
    archive = folder / kind.binary_archive
    part = archive.with_name(f"{archive.name}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not archive.is_file() or _md5(archive) != kind.binary_md5:
            if not part.is_file() or _md5(part) != kind.binary_md5:  # else only the last steps are missing
                _download_checked(kind, url or HOME + kind.binary_archive, part, progress or (lambda *_: None))
            part.replace(archive)
        return _unpack(kind, archive, folder)
    except OSError as error:
        raise AsflError(f"can't write below {folder}: {error.strerror or error}") from error


def _download_checked(kind: Cifar, url: str, part: Path, progress: Progress) -> None:
    _download(url, part, progress)
    found = _md5(part)
    if found != kind.binary_md5:
        part.unlink()
        raise AsflError(
            f"{url}: not the published archive, or damaged on the way: its md5 is {found} instead of "
            f"{kind.binary_md5}; the download was thrown away"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _download(url: str, part: Path, progress: Progress) -> None:
    """Append what is missing to `part`; a server that can't continue sends everything again."""
    if not url.lower().startswith(("http://", "https://")):
        raise AsflError(f"--url {url}: give an http or https address; a file you have goes into the data folder")
    have = part.stat().st_size if part.is_file() else 0
    response = _open(url, part, have)
    if response is None:
        part.unlink()
        response = _open(url, part, 0)
    assert response is not None, "only a request to continue can be in vain"
    with response:
        _receive(response, url, part, have if response.status == 206 else 0, progress)


def _open(url: str, part: Path, start: int) -> HTTPResponse | None:
    """The answer of the server, from byte `start` on if it can; None if what it has doesn't fit what we have."""
    headers = {"User-Agent": "asfl"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = cast(HTTPResponse, urlopen(Request(url, headers=headers), timeout=TIMEOUT_S))
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:  # it has no byte behind ours
            return None
        raise AsflError(f"can't download {url}: the server says {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise AsflError(f"can't download {url}: {_reason(error)}{_kept(part)}") from error
    if response.status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        response.close()
        return None
    return response


def _receive(response: HTTPResponse, url: str, part: Path, have: int, progress: Progress) -> None:
    total = None if response.length is None else have + response.length
    begin = os.O_APPEND if have else os.O_TRUNC
    with os.fdopen(open_ordinary(part, os.O_WRONLY | os.O_CREAT | begin), "wb") as file:
        progress(have, total)
        while True:
            try:
                chunk = response.read(_CHUNK_BYTES)
            except (OSError, HTTPException) as error:
                file.flush()
                raise AsflError(f"can't download {url}: {_reason(error)}{_kept(part)}") from error
            if not chunk:
                break
            file.write(chunk)
            have += len(chunk)
            progress(have, total)
            if have > MAX_BYTES:
                raise AsflError(f"{url} is larger than {MAX_BYTES:,} bytes; that can't be the archive")
    if total is not None and have < total:
        raise AsflError(f"can't download {url}: the connection ended after {have:,} of {total:,} bytes{_kept(part)}")


def _reason(error: Exception) -> str:
    """What a person calls it: urllib wraps the cause in an error of its own."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"no answer for {TIMEOUT_S:g} s"
    return str(getattr(cause, "strerror", None) or cause or type(cause).__name__)


def _kept(part: Path) -> str:
    if not part.is_file() or not part.stat().st_size:
        return f"; without a network, put {part.name.removesuffix('.part')} into {part.parent} yourself"
    return "; what has arrived is kept, and the same command continues"


def _unpack(kind: Cifar, archive: Path, folder: Path) -> Path:
    target = folder / kind.binary_folder
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{kind.binary_folder}.") as temporary:
        try:
            _extract(kind, archive, Path(temporary))
        except (EOFError, gzip.BadGzipFile, tarfile.TarError, zlib.error) as error:
            raise AsflError(f"{archive}: can't be unpacked: {error}") from error
        if not is_complete(kind, Path(temporary)):
            raise AsflError(f"{archive}: doesn't hold all of {', '.join(f'{name}.bin' for name in kind.records)}")
        fresh = Path(temporary) / kind.binary_folder
        if not target.exists():
            fresh.replace(target)
        else:  # mend what is there, and leave files alone that aren't ours
            for file in fresh.iterdir():
                file.replace(target / file.name)
    return target


def _extract(kind: Cifar, archive: Path, into: Path) -> None:
    """Unpack regular files and folders below `kind.binary_folder`; anything else is refused."""
    unpacked = 0
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or path.parts[:1] != (kind.binary_folder,):
                raise AsflError(f"{archive}: refused, '{member.name}' lies outside of {kind.binary_folder}/")
            if not (member.isreg() or member.isdir()):
                raise AsflError(f"{archive}: refused, '{member.name}' is neither a file nor a folder")
            unpacked += member.size
            if unpacked > MAX_BYTES:
                raise AsflError(f"{archive}: refused, it unpacks to more than {MAX_BYTES:,} bytes")
            tar.extract(member, into, filter="data")
