"""Names and what they stand for: what ships with asfl, and what people register from outside the package."""

import re
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from asfl.config.errors import AsflError, nearest, short
from asfl.config.plugins import load_plugins, registering

T = TypeVar("T")
NAME_PATTERN = r"^[a-z0-9_][a-z0-9_-]*$"


class Registry(Mapping[str, T], Generic[T]):
    """All names of one kind, those that ship first. Looking one up loads the plugins that were asked for."""

    def __init__(self, kind: str, shipped: Mapping[str, T]) -> None:
        """`kind` is what messages call it, such as "scheme"."""
        self.kind = kind
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
