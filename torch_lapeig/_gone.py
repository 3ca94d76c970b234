"""Names that code of users may import and that are gone, with what to use instead."""

from __future__ import annotations

from typing import NoReturn

GONE = {
    "torch_lapeig.eigen": {
        "Lanczos": "use ChebyshevSubspace(), or no solver for the default",
    },
}


def refuse(module: str, name: str) -> NoReturn:
    """Raise for an attribute that a module lacks: an ImportError with the replacement if the name is gone.

    Raises:
        ImportError: the name is gone. AttributeError: it never was there.
    """
    if (advice := GONE.get(module, {}).get(name)) is not None:
        raise ImportError(f"{module}.{name} is gone; {advice}", name=name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
