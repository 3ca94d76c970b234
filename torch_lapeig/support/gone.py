"""Names that users' code may still have, renamed or of other libraries, each with its replacement."""

from __future__ import annotations

import functools
import inspect
from typing import Any, TypeVar

from torch_lapeig.support import checks

Class = TypeVar("Class", bound=type)
ELSEWHERE = {  # arguments of other libraries, the arguments here, and how they say the same
    "n_neighbors": ({"neighbors", "k"}, "the number of neighbours is the k of a rule, as in neighbors=KNN(k)"),
    "sigma": ({"weights", "t"}, "the bandwidth is the t of exp(−d²/t), as in HeatKernel(2 * sigma**2)"),
    "gamma": ({"weights", "t"}, "the bandwidth is the t of exp(−d²/t), as in HeatKernel(1 / gamma)"),
    "bandwidth": ({"weights", "t"}, "the bandwidth is the t of exp(−d²/t), as in HeatKernel(bandwidth)"),
    "epsilon": ({"neighbors", "radius"}, "give it as in Radius(epsilon) for edges, HeatKernel(epsilon) for weights"),
    "eps": ({"neighbors", "radius"}, "give it as in Radius(eps) for edges, HeatKernel(eps) for weights"),
    "affinity": ({"neighbors"}, 'affinities are given by neighbors=Precomputed("affinity"), made of points by KNN(k)'),
}


def renamed(owner: Any, old: str, new: str) -> Any:
    """Return an attribute by its new name, with a FutureWarning about the old one."""
    checks.warn(f"{type(owner).__name__}.{old} is now {new}; the old name goes with version 0.4", FutureWarning)
    return getattr(owner, new)


def with_advice(kind: Class) -> Class:
    """Make the constructor of a class answer arguments of other libraries by the argument to use instead."""
    construct = kind.__init__  # type: ignore[misc]
    known = inspect.signature(construct).parameters

    @functools.wraps(construct)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            own, advice = ELSEWHERE.get(name, (set(), ""))
            if own & known.keys() and name not in known:
                raise TypeError(f"{kind.__name__} has no argument {name}=: {advice}")
        construct(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[misc]
    return kind
