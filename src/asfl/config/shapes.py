"""Arrays with named axes: `Float[Floats, "cuts clients"]` is an array of floats [C, N].

Tests check them (jaxtyping's import hook with beartype, see tests/conftest.py). Elsewhere they only tell a reader, and
nothing has to be imported for that.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
else:
    Floats = Ints = np.ndarray
    if "jaxtyping" in sys.modules:
        from jaxtyping import Float, Int
    else:

        class Float:
            """The array type alone, whatever the axes."""

            def __class_getitem__(cls, array_and_axes: tuple[Any, str]) -> Any:
                return array_and_axes[0]

        Int = Float


@dataclass(frozen=True)
class Each:
    """How JSON has an array: as a list of such entries, of lists of them where there are two axes; for `Annotated`."""

    entry: Any
    """Type and bounds, for pydantic."""
    axes: str = "clients"
    or_one: bool = False
    """Whether one entry alone may stand for all."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        listed: Any = self.entry
        for _ in self.axes.split():
            listed = list.__class_getitem__(listed)
        return core_schema.no_info_after_validator_function(
            lambda given: np.array(given) if isinstance(given, list) else given,
            handler.generate_schema(self.entry | listed if self.or_one else listed),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda of: np.asarray(of).tolist()),
        )


__all__ = ["Each", "Float", "Floats", "Int", "Ints"]
