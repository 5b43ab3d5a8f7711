"""Schemes, channels, models and data sets from files outside the package.

A file is Python code, so it is run only if a person names it: with `asfl --plugin FILE`, in the environment variable
ASFL_PLUGINS, or by calling `load_plugin`. No configuration and no run folder can name one: reading somebody's runs is
safe. The variable reaches every process that is started from here, and registries look at it when they are first asked
for a name, so workers know what their parent knows.
"""

import os
import re
import sys
import threading
import traceback
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from asfl.config.errors import AsflError
from asfl.config.files import check_file

VARIABLE = "ASFL_PLUGINS"
"""Files to load, separated like the entries of PATH."""

THIS_PROCESS = "this process"
"""Who registers if no plugin is being loaded: a notebook, a script."""

_loaded: dict[Path, str] = {}
_loading: list[Path] = []
_lock = threading.RLock()


def load_plugin(file: str | Path) -> None:
    """Run a file that registers something, now; processes started later will load it too.

    A file that was loaded before is run again, and what it registers replaces what it registered.
    """
    path = Path(file).expanduser().resolve()
    if os.pathsep in str(path):
        raise AsflError(f"plugin {file}: its path must not contain '{os.pathsep}', which separates files in {VARIABLE}")
    with _lock:
        _run(path, str(file))
        named = os.environ.get(VARIABLE, "")
        if path not in _named(named):
            os.environ[VARIABLE] = os.pathsep.join(filter(None, [named, str(path)]))


def load_plugins() -> None:
    """Load the files named in ASFL_PLUGINS that aren't loaded yet; registries call this before they look up a name."""
    named = os.environ.get(VARIABLE)
    if not named:
        return
    with _lock:
        for path in _named(named):
            if path not in _loaded and path not in _loading:
                _run(path, str(path))


def loaded_plugins() -> dict[str, str]:
    """The files that are loaded, each with the SHA-256 of what was run."""
    load_plugins()
    return {str(path): digest for path, digest in _loaded.items()}


def registering() -> str:
    """On whose behalf something is registered now: the file that is being loaded, or `THIS_PROCESS`."""
    return str(_loading[-1]) if _loading else THIS_PROCESS


def in_words_of_plugin(error: BaseException) -> str | None:
    """What went wrong in a plugin's code: file, line, and the line itself; None if it was in somebody else's."""
    ours = Path(__file__).parents[1]
    frames = traceback.extract_tb(error.__traceback__)
    inside = [number for number, frame in enumerate(frames) if Path(frame.filename) in _loaded]
    if not inside or any(ours in Path(frame.filename).parents for frame in frames[inside[-1] + 1 :]):
        return None
    frame = frames[inside[-1]]
    return f"plugin {frame.filename}, line {frame.lineno}, in {frame.name}: {_reason(error)}\n    {frame.line}"


def _named(text: str) -> list[Path]:
    return [Path(part).expanduser().resolve() for part in text.split(os.pathsep) if part]


def _run(path: Path, shown: str) -> None:
    check_file(path, f"plugin {shown}")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise AsflError(f"plugin {shown}: can't be read: {error.strerror or error}") from None
    # Dataclasses look a module up by its name; files of the same name in two folders are two modules.
    name = f"asfl_plugin_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    before = sys.modules.get(name)
    sys.modules[name] = module
    _loading.append(path)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        if isinstance(error, KeyboardInterrupt):
            raise
        raise AsflError(f"plugin {shown}{_line_of(error, path)}: {_reason(error)}") from error
    finally:
        _loading.pop()
    _loaded[path] = sha256(source).hexdigest()


def _line_of(error: BaseException, path: Path) -> str:
    """Where in the file it went wrong, as ", line 7"; nothing if it can't be said."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)
    return f", line {line}" if line else ""


def _reason(error: BaseException) -> str:
    if isinstance(error, AsflError):  # ours already say what is wrong and what would be right
        return str(error)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
