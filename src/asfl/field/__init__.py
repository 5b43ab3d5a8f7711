"""The same round between processes: clients that are really elsewhere (docs/field.md)."""
