"""Where many runs are trained: processes of this machine, or the nodes of a Ray cluster. Same jobs, same events."""
