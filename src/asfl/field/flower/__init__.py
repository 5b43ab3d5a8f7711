"""A federation with Flower: it enrols devices and starts the run; tensors go over a stream of our own (docs/deploy.md).

Flower's SuperLink and SuperNodes know which devices there are, check their keys, and start one ServerApp and, on each
device, one ClientApp. The ServerApp sends every node one message: where the stream is, and a token for it. The
ClientApp lives until the run is over.
"""

from importlib import util

from asfl.config.errors import MissingExtraError

if util.find_spec("flwr") is None:
    raise MissingExtraError("a federation with Flower", "flower")
