"""ASFL: adaptive split federated learning over wireless networks.

Names are imported when they are first used, so that `import asfl` costs next to nothing. They are listed in
`__init__.pyi`.
"""

import os

import lazy_loader

# OpenMP reads it when PyTorch is imported: threads that wait sleep instead of spinning. Spinning ones keep others from
# work as soon as there are more threads than cores: ten rounds of the demo beside two other runs on two cores took 34 s
# spinning, 4.5 s sleeping (two runs each).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
