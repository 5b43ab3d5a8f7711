"""The images that are learnt, and how they are spread over the clients. Nothing here needs PyTorch.

`load_data(config)` gives the images `config.data.name` names: one of the data sets asfl knows, the path of an `.npz`
file, or a name that `register_arrays` made known. `deal` deals the training images out to the clients.
"""

from asfl.data.arrays import register_arrays
from asfl.data.images import ImageData
from asfl.data.load import load_data
from asfl.data.partition import deal, distance_from_global, label_counts, partition

__all__ = ["ImageData", "deal", "distance_from_global", "label_counts", "load_data", "partition", "register_arrays"]
