"""What runs say: comparisons, sweeps, tables, figures, the page."""
