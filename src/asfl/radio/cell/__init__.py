"""Cells of 3GPP TR 38.901: clients that walk, and what Sionna says of the places they pass."""
