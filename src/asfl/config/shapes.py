"""Arrays with named axes: `Float[Floats, "cuts clients"]` is an array of floats [C, N].

Tests check them (jaxtyping's import hook with beartype, see tests/conftest.py). Elsewhere they only tell a reader, and
nothing has to be imported for that.
"""

import sys
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

__all__ = ["Float", "Floats", "Int", "Ints"]
