"""Python first: what `asfl run` and `asfl compare` do, as functions that return what came out."""
