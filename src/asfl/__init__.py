"""ASFL: adaptive split federated learning over wireless networks.

Names are imported when they are first used, so that `import asfl` costs next to nothing. They are listed in
`__init__.pyi`, which isn't read before.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import lazy_loader

    found, listed, names = lazy_loader.attach_stub(__name__, __file__)
    globals().update(__getattr__=found, __dir__=listed, __all__=names)
    return names if name == "__all__" else found(name)


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
