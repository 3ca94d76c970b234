"""Names that code of users may import and that are gone, with what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

GONE = {
    "torch_lapeig.eigen": {
        "Lanczos": "use ChebyshevSubspace(), or no solver for the default",
    },
}


def stand_in(module: str, name: str) -> Callable[..., NoReturn]:
    """Return what stands for a name that is gone: a function that says what to use when it is called.

    An error at import would hide the sentence from ``hasattr``, and break programs that only look.

    Raises:
        AttributeError: the name never was there.
    """
    if (advice := GONE.get(module, {}).get(name)) is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def gone(*args: object, **kwargs: object) -> NoReturn:
        raise TypeError(f"{module}.{name} is gone; {advice}")

    return gone
