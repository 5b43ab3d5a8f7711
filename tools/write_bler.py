"""Write the block error rates of 5G NR that ship with asfl, from the tables of Sionna SYS (extra asfl[channels]).

Sionna simulated PUSCH and PDSCH over AWGN for a few code block sizes and SNRs, and interpolates between them; here its
interpolation is evaluated on a grid, made monotone (more SNR never means more errors) and rounded to half precision.
Sionna is Apache-2.0, Copyright NVIDIA CORPORATION & AFFILIATES; the file says where it is from.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np

FILE = Path(__file__).parents[1] / "src" / "asfl" / "radio" / "bler.npz"
CODE_BLOCK_BITS = (24, 100, 500, 1000, 2000)
"""The sizes that were simulated; larger code blocks behave like the largest of them."""
STEP_DB = 0.2
LINKS = ("uplink", "downlink")
"""Sionna's categories 0 (PUSCH) and 1 (PDSCH)."""


def main() -> None:
    from sionna.phy.nr.utils import decode_mcs_index
    from sionna.sys import PHYAbstraction

    arrays: dict[str, np.ndarray] = {}
    snr_db = np.arange(-5.0, 30.0 + STEP_DB / 2, STEP_DB)
    layer = PHYAbstraction(
        snr_db_interp_min_max_delta=(-5.0, 30.0 + STEP_DB / 2, STEP_DB), cbs_interp_min_max_delta=(24, 2001, 4)
    )
    for category, link in enumerate(LINKS):
        rows = layer.bler_table["category"][category]["index"][1]["MCS"]
        mcs = np.array(sorted(rows))
        order, rate = (
            np.array([float(decode_mcs_index(int(m), 1, is_pusch=category == 0)[part]) for m in mcs]) for part in (0, 1)
        )
        grid = layer.bler_table_interp[category, 0].numpy()[mcs]
        sizes = [round((bits - 24) / 4) for bits in CODE_BLOCK_BITS]
        bler = np.clip(grid[:, sizes, : len(snr_db)], 0.0, 1.0)
        arrays[f"{link}_bits_per_symbol"] = order * rate
        arrays[f"{link}_bler"] = np.minimum.accumulate(bler, axis=2).astype(np.float16)
    source = f"Sionna {version('sionna-no-rt')}, sionna.sys BLER tables, MCS table 1; Apache-2.0, Copyright NVIDIA"
    np.savez_compressed(
        FILE,
        snr_db=snr_db,
        code_block_bits=np.array(CODE_BLOCK_BITS),
        source=np.array(source),
        **arrays,  # type: ignore[arg-type]
    )
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
