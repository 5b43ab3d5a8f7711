"""Timings, as medians and ratios within one run; `python -m benchmarks` runs them all."""
