"""Where PyTorch computes."""

import torch

from asfl.config.errors import AsflError


def device_named(name: str) -> torch.device:
    """Where to compute; "auto" is a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise AsflError('training.device = "cuda", but PyTorch sees no GPU here; "auto" or "cpu" would work')
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")
