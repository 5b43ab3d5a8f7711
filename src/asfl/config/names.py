"""The names a configuration may use: what ships with asfl, and schemes, channels, models and data sets of one's own.

What a name stands for is known further on: `models.build`, `data.arrays` and `radio.channel` look theirs up here.

A plugin is Python code, so it is run only if a person names its file: with `asfl --plugin FILE`, in the environment
variable ASFL_PLUGINS, or by calling `load_plugin`. No configuration and no run folder can name one, so reading foreign
runs is safe. The variable reaches every process that is started from here, and registries look at it when they are
first asked for a name, so workers know what their parent knows.
"""

import inspect
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Literal, Self, TypeVar, get_args

from asfl.config.errors import AsflError, nearest, short
from asfl.config.files import check_file

T = TypeVar("T")
NAME_PATTERN = r"^[a-z0-9_][a-z0-9_-]*$"

PLUGINS_VARIABLE = "ASFL_PLUGINS"
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
        raise AsflError(
            f"plugin {file}: its path must not contain '{os.pathsep}', which separates files in {PLUGINS_VARIABLE}"
        )
    with _lock:
        _run(path, str(file))
        named = os.environ.get(PLUGINS_VARIABLE, "")
        if path not in _named(named):
            os.environ[PLUGINS_VARIABLE] = os.pathsep.join(filter(None, [named, str(path)]))


def load_plugins() -> None:
    """Load the files named in ASFL_PLUGINS that aren't loaded yet; registries call this before they look up a name."""
    named = os.environ.get(PLUGINS_VARIABLE)
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


class Registry(Mapping[str, T], Generic[T]):
    """All names of one kind, those that ship first. Looking one up loads the plugins that were asked for."""

    def __init__(self, kind: str, shipped: Mapping[str, T], own: str = "", arguments: int = 0) -> None:
        """`kind` is what messages call it, such as "scheme".

        `own` is the section of the configuration that has the settings of what is registered: those parameters of a
        factory that follow its first `arguments`.
        """
        self.kind, self.own, self._arguments = kind, own, arguments
        self._shipped = dict(shipped)
        self._registered: dict[str, T] = {}
        self._by: dict[str, str] = {}

    def check_name(self, name: str) -> None:
        """Refuse what can't be the name of somebody's own."""
        if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
            raise AsflError(f"{self.kind} name {name!r} must be small letters, digits, - and _, and not begin with -")
        if name in self._shipped:
            raise AsflError(f"{self.kind} '{name}' ships with asfl; give yours another name")

    def register(self, name: str, meaning: T) -> None:
        """Make a name known. Who registered it may do so again, which replaces it; nobody else may."""
        self.check_name(name)
        by = registering()
        if self._by.get(name, by) != by:
            raise AsflError(f"{self.kind} '{name}' is already registered by {self._by[name]}; give one another name")
        self._registered[name] = meaning
        self._by[name] = by

    def ships(self, name: str) -> bool:
        """Whether a name is known without any plugin."""
        return name in self._shipped

    def registered_by(self, name: str) -> str | None:
        """The file that says what a name means, or `THIS_PROCESS`; None for what ships."""
        return self._by.get(name)

    def clear(self) -> None:
        """Forget what was registered."""
        self._registered.clear()
        self._by.clear()

    def named(self, name: str) -> T:
        """What a name stands for; a clear error if nothing."""
        if name not in self:
            raise AsflError(self.unknown(name))
        return self[name]

    def unknown(self, name: str, inside: str = "") -> str:
        """What is wrong with a name that isn't known, where it was found, and what would be right."""
        return f"unknown {self.kind} {short(name)}{inside}: {with_own(nearest(name, self))}"

    def settings(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as the factory of `name` takes them; refused if its signature has no place for them."""
        factory: Any = self[name]
        words = f"{', '.join(given)}: no setting of {self.kind} '{name}', which takes none" if given else ""
        if not self.ships(name):
            words = ""
            try:
                inspect.signature(factory).bind(*range(self._arguments), **given)
            except TypeError as error:
                words = f"{self.kind} '{name}': {error}"
            except ValueError:  # a function in C may have no signature
                pass
        if words:
            raise AsflError(f"{self.own}: {words}")
        return dict(given)

    def __getitem__(self, name: str) -> T:
        load_plugins()
        return self._shipped[name] if name in self._shipped else self._registered[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter([*self._shipped, *self._registered])

    def __len__(self) -> int:
        load_plugins()
        return len(self._shipped) + len(self._registered)


def with_own(hint: str) -> str:
    """A hint at valid names, and how one's own become valid."""
    return f"{hint}{'' if hint.endswith('?') else '.'} Your own needs --plugin FILE"


# ---------------------------------------------------------------------- names that ship
Architecture = Literal["cnn", "mlp", "vgg11", "vgg16", "vgg19", "resnet18", "resnet50"]
"""The networks that ship; any other is somebody's own (`asfl.register_model`)."""
Norm = Literal["batch", "group", "none"]
Precision = Literal["float32", "bfloat16"]
Dataset = Literal["digits", "cifar10", "cifar100"]
"""The data sets that ship or can be fetched; any other is somebody's own (`asfl.register_arrays`)."""

CHANNELS: Registry[Any] = Registry(
    "channel", dict.fromkeys(("rayleigh", "trace", "3gpp")), own="scenario.channel.own", arguments=2
)
"""What `scenario.channel.kind` may be, with the factory of a registered one."""
MODELS: Registry[Any] = Registry("architecture", dict.fromkeys(get_args(Architecture)), own="model.own", arguments=1)
"""What `model.architecture` may be, with the builder of a registered one."""
DATASETS: Registry[Any] = Registry("data set", dict.fromkeys(get_args(Dataset)))
"""What `data.name` may be besides the path of an `.npz` file, with the images of a registered one."""

MAX_WIDTH = 100.0
"""Of a network: a hundred times the channels are ten thousand times the parameters."""

_NORM_TAG: dict[Norm, str] = {"batch": "", "group": "-gn", "none": "-nonorm"}


def is_own_file(name: str) -> bool:
    """Whether a data set's name is the path of an NPZ file."""
    return name.lower().endswith(".npz")


_PRIVATE = re.compile(r"private_([1-4])x([1-9][0-9]{0,3})x([1-9][0-9]{0,3})_([1-9][0-9]{0,4})")


def private_shape(name: str) -> tuple[int, int, int, int] | None:
    """Channels, height, width and classes of images that clients keep to themselves: `private_3x32x32_10`."""
    match = _PRIVATE.fullmatch(name)
    if match is None or int(match[4]) < 2:
        return None
    channels, height, width, classes = map(int, match.groups())
    return channels, height, width, classes


def is_known(name: str) -> bool:
    """Whether `name` can be a data set; whether the file it may name exists and is right shows when it is read."""
    return name in DATASETS or is_own_file(name) or private_shape(name) is not None


def unknown_data_set(name: str, inside: str = "") -> str:
    """What is wrong with a name that isn't known, where it was found, and what would be right."""
    hint = nearest(name, DATASETS)
    own = ", private_3x32x32_10 (channels, height, width, classes), or the path of an .npz file"
    own = own if hint.startswith("valid") else ""
    return f"unknown data set {short(name)}{inside}: {with_own(hint + own)}"


@dataclass(frozen=True)
class ModelSpec:
    """Which network: written as `vgg19-cifar100`, `vgg19-w0.25-gn-cifar10`, `cnn-digits`, `cnn-mine.npz`."""

    architecture: str
    """One of `Architecture`, or a name given to `register_model`."""
    dataset: str
    """One of `Dataset`, the path of an `.npz` file, a name given to `asfl.data.register_arrays`, or what images look
    like that nobody but their owners has (`private_shape`)."""
    width: float = 1.0
    norm: Norm = "batch"
    own: tuple[tuple[str, Any], ...] = ()
    """What `[model.own]` says, for a network of somebody's own."""

    @property
    def name(self) -> str:
        width = "" if self.width == 1 else f"-w{self.width:g}"
        return f"{self.architecture}{width}{_NORM_TAG[self.norm]}-{self.dataset}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The spec behind a profile name; the inverse of `name`. Without a data set it is CIFAR-100, the paper's."""
        name = name if is_own_file(name) else name.lower()  # paths tell small from capital letters
        # Names that are known may contain a "-" themselves, and the longest is meant.
        known = "|".join(map(re.escape, sorted(MODELS, key=len, reverse=True)))
        match = re.fullmatch(rf"({known}|[a-z0-9]+)(?:-w([0-9.]+))?(-gn|-nonorm)?(?:-([a-z0-9_]+|.+\.npz))?", name)
        if match is None:
            valid = (f"{model}-{data}" for model in MODELS for data in DATASETS)
            raise AsflError(f"unknown model {short(name)}: {nearest(name, valid)}")
        architecture, width, norm_tag, dataset = match.groups()
        dataset = dataset or "cifar100"
        if architecture not in MODELS:
            raise AsflError(MODELS.unknown(architecture, f" in '{name}'"))
        if not is_known(dataset):
            raise AsflError(unknown_data_set(dataset, f" in '{name}'"))
        try:
            multiplier = float(width or 1)
        except ValueError:
            multiplier = 0.0
        if not 0 < multiplier <= MAX_WIDTH:
            raise AsflError(f"width {short(width)} in {short(name)} is not a number above 0 and at most {MAX_WIDTH:g}")
        norm = {tag: norm for norm, tag in _NORM_TAG.items()}[norm_tag or ""]
        return cls(architecture, dataset, multiplier, norm)
