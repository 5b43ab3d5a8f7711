"""The same round between processes: clients that are really elsewhere (docs/field.md)."""

import os
from importlib import util

from asfl.config.errors import MissingExtraError

if util.find_spec("torch") is None:
    raise MissingExtraError("training with clients elsewhere", "train,field")

# OpenMP reads it when PyTorch is imported: threads that wait don't spin. With a process per client there may be more
# threads than cores, and those that spin keep others from work: four clients with two threads each on two busy cores
# took 1.9 s a round spinning, 0.4 s sleeping (two runs).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC reads it when imported; else streams that end are on stderr
