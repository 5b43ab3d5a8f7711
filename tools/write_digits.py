"""Writes the digits that ship with the package; needs scikit-learn, which asfl itself doesn't.

pip install scikit-learn && python tools/write_digits.py
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits  # type: ignore[import-not-found, unused-ignore]

FILE = Path(__file__).resolve().parent.parent / "src" / "asfl" / "data" / "digits.npz"
TEST_IMAGES = 360
SEED = 2009


def main() -> None:
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    test = np.sort(stratified(labels, TEST_IMAGES, np.random.default_rng(SEED)))
    train = np.setdiff1d(np.arange(len(labels)), test)
    np.savez_compressed(
        FILE,
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        scale=np.uint8(16),
    )
    print(f"{FILE.name}: {len(train)} training and {len(test)} test images, {FILE.stat().st_size:,} bytes")


def stratified(labels: NDArray[np.uint8], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` random indices with the label mix of the whole, each class rounded to the nearest that sums up."""
    exact = count * np.bincount(labels) / len(labels)
    take = np.floor(exact).astype(int)
    take[np.argsort(take - exact)[: count - take.sum()]] += 1
    return np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(take)])


if __name__ == "__main__":
    main()
