"""Removed names that users' code may still import, with their replacements."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

GONE = {
    "torch_lapeig.eigen": {
        "Lanczos": "use ChebyshevSubspace(), or no solver for the default",
        "TorchLobpcg": "use Lobpcg(), or torch.lobpcg itself",
    },
}


def stand_in(module: str, name: str) -> Callable[..., NoReturn]:
    """Return a function that stands for a removed name and raises, when called, an error that names the replacement.

    An error at import would break programs that only test for the name.

    Raises:
        AttributeError: the name never was there.
    """
    if (advice := GONE.get(module, {}).get(name)) is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def gone(*args: object, **kwargs: object) -> NoReturn:
        raise TypeError(f"{module}.{name} is gone; {advice}")

    return gone
