"""Handwritten digits that ship with the package: 1,797 images of 8×8 pixels with values 0 … 16.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, licence CC BY 4.0; the part that scikit-learn gives as `load_digits`.
`tools/write_digits.py` wrote the file: the values are unchanged, the split into 1,437 training and 360 test images is
ours.
"""

from functools import lru_cache
from importlib import resources

from asfl.data.arrays import read_npz
from asfl.data.images import ImageData


@lru_cache(maxsize=1)
def load_digits() -> ImageData:
    with resources.as_file(resources.files("asfl") / "data" / "digits.npz") as path:
        return read_npz(path, "digits")
