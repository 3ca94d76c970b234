"""Attributes that are computed once for each object, whatever the mode of autograd in which they are first read."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from functools import cached_property as cached_property

    derived_property = cached_property
else:

    class cached_property(functools.cached_property):
        """Constant attribute, computed at its first use and kept with the object, without a lock, as in Python 3.12.

        Before 3.12 there is one lock for all objects of a class, for which a process waits for ever that is forked
        while another thread computes. Threads that ask at once may all compute, and get the first result.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:  # Python calls this only if the object does not have the attribute yet
                return self
            value = self.func(instance)
            value = usable(value) if torch.is_inference_mode_enabled() else value
            return vars(instance).setdefault(self.attrname, value)

    class derived_property(functools.cached_property):
        """Attribute derived from tensors, ``_sources``: for each gradient mode, until they change in place."""

        def __set__(self, instance: Any, value: Any) -> None:
            """Refuse to be set; with this method Python calls ``__get__`` at each use."""
            raise AttributeError(f"{self.attrname} is read-only")

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            is_recorded = torch.is_grad_enabled()
            now = []
            for x in instance._sources:
                now += x.requires_grad, x.is_inference() or x._version
            kept = vars(instance).setdefault("_kept", {})
            found = kept.get((self.attrname, is_recorded))
            if found is None or found[0] != now:
                value = self.func(instance)
                found = now, usable(value) if torch.is_inference_mode_enabled() else value
                kept[self.attrname, is_recorded] = found
            return found[1]


def usable(x: Any) -> Any:
    """Return a tensor, or a tuple of some, with copies that autograd takes of those made in `torch.inference_mode`."""
    with torch.inference_mode(False):
        return tree_map(lambda part: part.clone() if isinstance(part, Tensor) and part.is_inference() else part, x)


def make_usable(instance: Any) -> None:
    """Replace the tensors of an object by `usable` ones."""
    vars(instance).update(usable(dict(vars(instance))))


def check_unchanged(instance: Any, name: str, *tensors: Tensor) -> None:
    """Raise ValueError if tensors, "x has", have changed in place since the first call, which the constructor makes."""
    now = [x.is_inference() or x._version for x in tensors]
    if vars(instance).setdefault("_versions", {}).setdefault(name, now) != now:
        kind = type(instance).__name__
        raise ValueError(f"{name} changed in place since the operator was made; make a new {kind}")


def own_state(instance: Any) -> dict[str, Any]:
    """Return the attributes to pickle and to copy, without those computed from them; a class's ``__getstate__``."""
    kind = type(instance)
    computed = {name for name in dir(kind) if isinstance(getattr(kind, name, None), functools.cached_property)}
    return {name: vars(instance)[name] for name in vars(instance).keys() - computed - {"_kept", "_versions"}}


def deep_copy(instance: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy; a class's ``__deepcopy__``. Raise RuntimeError for tensors with a history of autograd."""
    make, parts, state = instance.__reduce_ex__(4)[:3]
    try:
        parts, state = copy.deepcopy((parts, state), memo)
    except RuntimeError as error:
        raise RuntimeError(
            f"{type(instance).__name__} has tensors that autograd has computed, which torch cannot copy; detach() them "
            "first, or compute it under torch.no_grad()"
        ) from error
    found = make(*parts)
    found.__setstate__(state) if hasattr(found, "__setstate__") else getattr(found, "__dict__", {}).update(state or {})
    return found
