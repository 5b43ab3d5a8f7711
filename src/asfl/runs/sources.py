"""What a run takes from outside its folder: data, a trace, code of one's own; from where, and with which checksum.

By the field that names it: `data.name`, `scenario.channel.trace_file`, `training.initial`; and `scheme`,
`scenario.channel.kind` and `model.architecture`, where a plugin says what the name means.
"""

import hashlib
import logging
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from asfl.config import Config
from asfl.config.errors import AsflError, printable
from asfl.config.files import open_to_read
from asfl.config.names import CHANNELS, MODELS
from asfl.config.plugins import loaded_plugins
from asfl.data import load_data
from asfl.data.load import origin_of
from asfl.runs.initial import initial_file
from asfl.runs.manifest import Manifest, Source
from asfl.schemes import SCHEMES

_log = logging.getLogger(__name__)
_DATA_THEN = "data_sha256"
"""The fact that is all that earlier versions kept: of images and labels only."""


def source_of(path: Path) -> Source:
    """A file, streamed once."""
    path = path.expanduser().absolute()
    try:
        facts = path.stat()
        return Source(origin=printable(str(path)), sha256=_sha256(path, facts.st_mtime_ns, facts.st_size))
    except OSError as error:
        raise AsflError(f"can't read {path}: {error.strerror}") from None


@lru_cache(maxsize=64)  # a comparison asks once for each of its runs
def _sha256(path: Path, mtime_ns: int, size: int) -> str:
    with open_to_read(path, sys.maxsize) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sources_of(config: Config, scheme: str, data_dir: Path | None) -> dict[str, Source]:
    """What is there now; the data are read for it, files are streamed."""
    data, channel = load_data(config, data_dir), config.scenario.channel
    found = {"data.name": Source(origin=printable(origin_of(config, data_dir)), sha256=data.digest)}
    if channel.kind == "trace":
        found["scenario.channel.trace_file"] = source_of(Path(channel.trace_file))
    if (weights := initial_file(config)) is not None:
        found["training.initial"] = source_of(weights)
    plugins = loaded_plugins()
    for field, registry, name in (
        ("scheme", SCHEMES, scheme),
        ("scenario.channel.kind", CHANNELS, channel.kind),
        ("model.architecture", MODELS, config.model.architecture),
    ):
        file = registry.registered_by(name)
        if file in plugins:  # what a notebook registers has no file
            found[field] = Source(origin=printable(file), sha256=plugins[file])
    return found


def check_sources(
    folder: Path,
    manifest: Manifest,
    config: Config,
    data_dir: Path | None,
    *,
    meant: bool = False,
    needed: bool = True,
) -> dict[str, Source]:
    """What is there now; refused if it isn't what it was when the run began, unless that is `meant`.

    Unless it is `needed`, what can't be read here isn't looked at.
    """
    try:
        now = sources_of(config, manifest.scheme, data_dir)
    except AsflError:
        if needed:
            raise
        return {}
    other = changes(manifest, config, data_dir, now)
    if other and not meant:
        raise AsflError(
            f"{folder}: {'; '.join(other.values())}; bring back what was there, give another --out, or say with "
            "--changed-data that it is meant"
        )
    for sentence in other.values():
        _log.warning("%s: %s; its rounds from here on have learnt from other data than those before", folder, sentence)
    unknown = [] if manifest.sources else now.keys() - ({"data.name"} if _DATA_THEN in manifest.facts else set())
    if unknown and needed:
        _log.warning(
            "%s began with an earlier version of asfl, which kept no checksum of %s: whether that is still the same "
            "can't be checked",
            folder,
            ", ".join(sorted(unknown)),
        )
    return now


def _where(then: str, now: str) -> str:
    return then if then == now else f"{then} then, {now} now"


def changes(manifest: Manifest, config: Config, data_dir: Path | None, now: Mapping[str, Source]) -> dict[str, str]:
    """What is something else than when a run began: a sentence for each field."""
    found = {
        field: f"{field} isn't what it was when the run began ({_where(before.origin, now[field].origin)})"
        for field, before in manifest.sources.items()
        if field in now and before.sha256 != now[field].sha256
    }
    old = manifest.facts.get(_DATA_THEN)
    if not manifest.sources and isinstance(old, str) and old != load_data(config, data_dir).sha256:
        found["data.name"] = "data.name has other images or labels than when the run began"
    return found
