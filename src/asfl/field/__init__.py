"""The same round between processes: clients that are really elsewhere (docs/field.md)."""

import os
from importlib import util

from asfl.config.errors import MissingExtraError

if util.find_spec("torch") is None:
    raise MissingExtraError("training with clients elsewhere", "train,field")

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC reads it when imported; else streams that end are on stderr
