"""Names and what they stand for: what ships with asfl, and what people register from outside the package."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from asfl.config.errors import AsflError, nearest, short
from asfl.config.plugins import load_plugins, registering

T = TypeVar("T")
NAME_PATTERN = r"^[a-z0-9_][a-z0-9_-]*$"


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

    def declared(self, name: str) -> Mapping[str, inspect.Parameter]:
        """The settings of what somebody registered: nothing declares them but the signature of its factory."""
        if not self.own or self.ships(name):
            return {}
        factory: Any = self[name]
        try:
            parameters = inspect.signature(factory, eval_str=True).parameters
        except NameError:  # an annotation that only a type checker can resolve
            parameters = inspect.signature(factory).parameters
        except (TypeError, ValueError):  # a function in C may have no signature
            return {}
        places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = [one.name for one in parameters.values() if one.kind in places][: self._arguments]
        return {
            one.name: one
            for one in parameters.values()
            if one.name not in taken and one.kind is not inspect.Parameter.VAR_POSITIONAL
        }

    def settings(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as the factory of `name` takes them; refused if it doesn't declare them, or with another type."""
        declared = dict(self.declared(name))
        others = [one for one in declared if declared[one].kind is inspect.Parameter.VAR_KEYWORD]
        for one in others:
            del declared[one]
        for key in () if others else given:
            if key not in declared:
                hint = nearest(key, declared) if declared else "it takes no settings"
                raise AsflError(f"{self.own}.{key} is no setting of {self.kind} '{name}': {hint}")
        for key, parameter in declared.items():
            if parameter.default is inspect.Parameter.empty and key not in given:
                raise AsflError(f"{self.kind} '{name}' needs {self.own}.{key}")
        return {key: self._typed(key, value, declared.get(key)) for key, value in given.items()}

    def _typed(self, key: str, value: Any, parameter: inspect.Parameter | None) -> Any:
        """By the annotation, or the type of the default; without either, anything goes."""
        if parameter is None:
            return value
        kind, default = parameter.annotation, parameter.default
        if kind is inspect.Parameter.empty or isinstance(kind, str):
            kind = Any if default in (None, inspect.Parameter.empty) else type(default)
        try:
            return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
        except PydanticUserError:
            reason = f"Input should be {kind}, which no configuration can say"
        raise AsflError(f"{self.own}.{key} = {short(value)}: {reason[0].lower()}{reason[1:]}")

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
