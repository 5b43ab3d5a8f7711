"""ASFL: adaptive split federated learning over wireless networks.

Names are imported when they are first used, so that `import asfl` costs next to nothing. They are listed in
`__init__.pyi`.
"""

import os

import lazy_loader

# OpenMP reads it when PyTorch is imported: how long threads that wait spin before they sleep. With the usual 300,000
# turns they keep others from work where there are more threads than cores: ten rounds of the demo took 34 s beside two
# busy processes on two cores. With 10,000 it was 4.9 s. On quiet cores 40 rounds take 4.8 s, as usual (5.2 s); with
# threads that sleep at once (OMP_WAIT_POLICY=PASSIVE) they would take 9.5 s.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
