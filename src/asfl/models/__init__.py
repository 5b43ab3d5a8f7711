"""Networks that can be cut between any two units, and their profiles: bits and FLOPs."""
