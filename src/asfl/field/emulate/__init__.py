"""Networks that are worse than the real one, on purpose."""
