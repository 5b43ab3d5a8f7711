"""The Python interface: what `asfl run` and `asfl compare` do, as functions that return results."""
