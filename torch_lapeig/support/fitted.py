"""Modules with a fitted state: tensors of the size of the data, which load into a fresh module."""

from __future__ import annotations

import dataclasses
import inspect
import json
import reprlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from torch_lapeig.support import checks
from torch_lapeig.support.tuning import rows_of_block

ENTRY = "_extra_state"  # torch's own name in a state dict for state beside tensors

Own = TypeVar("Own", bound="FittedModule")
State = dict[str, Tensor]  # fitted tensors by name


class Configured:
    """Computation with attributes, named in ``CONFIGURATION``, on which the meaning of a fit depends."""

    CONFIGURATION: ClassVar[tuple[str, ...]] = ()

    def configuration(self) -> dict[str, Any]:
        """Return the name of the class and these attributes."""
        return {"class": type(self).__name__, **{name: getattr(self, name) for name in self.CONFIGURATION}}


class FittedModule(Configured, nn.Module):
    """Module that keeps the tensors of ``FITTED``, the first None until it is fitted, and loads them."""

    # No buffers: `DistributedDataParallel` broadcasts buffers at each forward, and a fit belongs to its own process.
    FITTED: ClassVar[tuple[str, ...]]
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in getattr(cls, "FITTED", ()):
            setattr(cls, name, None)
        if "__init__" in vars(cls):
            checks.with_advice(cls)

    def extra_repr(self) -> str:
        """Return the constructor's arguments, except modules, which torch shows as submodules."""
        parts = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if not isinstance(value, nn.Module):
                parts.append(f"{name}={value!r}" if parameter.kind is parameter.KEYWORD_ONLY else repr(value))
        return ", ".join(parts)

    def check_fitted(self) -> None:
        """Raise RuntimeError before ``fit``."""
        if getattr(self, self.FITTED[0]) is None:
            raise RuntimeError(f"{type(self).__name__} must be fitted before it takes new points; call fit first")

    def _keep(self, state: State, given: Any) -> None:
        """Set the fitted tensors; a tensor that the caller gave is copied."""
        for name in self.FITTED:
            value = state.get(name)
            setattr(self, name, value.clone() if value is given and value is not None else value)

    def _fitted(self) -> State:
        values = ((name, getattr(self, name)) for name in self.FITTED)
        return {name: value for name, value in values if value is not None}

    def _apply(self: Own, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Own:
        super()._apply(fn, recurse)
        for name, value in self._fitted().items():
            setattr(self, name, fn(value))
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in (fit := self._fitted()).items():
            destination[prefix + name] = value if keep_vars else value.detach()
        if fit:
            destination[prefix + ENTRY] = entry_of(self)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        inside = f"{prefix}module."  # under which a wrapper has saved
        for key in [key for key in state_dict if key.startswith(inside) and "module" not in self._modules]:
            state_dict[prefix + key.removeprefix(inside)] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *others)
        local_metadata, strict, missing_keys, unexpected_keys, error_msgs = others
        own = self._fitted()
        saved = saved_fit(state_dict, prefix, self.FITTED, unexpected_keys)
        saved = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in saved.items()}
        if strict:
            missing_keys.extend(prefix + name for name in own if name not in saved)
        if not saved:
            return
        if (reason := self._refusal(state_dict.get(prefix + ENTRY))) is not None:
            error_msgs.append(f"The fit of {prefix.rstrip('.') or type(self).__name__} was not loaded: {reason}.")
            return
        saved = self._completed(saved)
        # A fit takes the size and dtype of the saved one, and stays on the module's device, unless that holds nothing.
        tensors = (tensor for tensor in [*self.parameters(), *self.buffers(), *own.values()] if not tensor.is_meta)
        device = next((tensor.device for tensor in tensors), None)
        assign = local_metadata.get("assign_to_params_buffers", False)
        for name in self.FITTED:
            value = saved.get(name)
            setattr(self, name, value if assign or value is None else value.detach().to(device, copy=True))

    def _completed(self, saved: State) -> State:
        """Return a saved fit, completed by the tensors that can be computed again."""
        return saved

    def _refusal(self, entry: Tensor | None) -> str | None:
        """Return the reason why a fit of a saved configuration is not valid here; None if it is valid."""
        if entry is None:
            return f"the state lacks its {ENTRY!r}, which says what the fit means; fit again, or save the whole state"
        saved = json.loads(bytes(entry.to("cpu", torch.uint8).tolist()))
        differences = ", ".join(_differences(saved, json.loads(_as_json(self))))
        return f"{differences}; construct the module as it was, or fit again" if differences else None


def saved_fit(state_dict: State, prefix: str, names: Iterable[str], unexpected_keys: list[str]) -> State:
    """Return the tensors of these names in a state dict; they and the configuration count as expected keys."""
    known = {prefix + name for name in (*names, ENTRY)}
    unexpected_keys[:] = [key for key in unexpected_keys if key not in known]
    return {name: state_dict[prefix + name] for name in names if prefix + name in state_dict}


def entry_of(module: Configured) -> Tensor:
    """Return the configuration of a module as bytes in a tensor, the type that every handler of state dicts expects."""
    return torch.frombuffer(bytearray(_as_json(module), "utf-8"), dtype=torch.uint8)


def _as_json(value: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, Configured):
            return value.configuration()
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {"class": type(value).__name__, **vars(value)}
        if isinstance(value, Tensor):
            return value.tolist()
        return {"class": getattr(value, "__name__", type(value).__name__)}  # a function or module of the user's

    return json.dumps(value, default=plain)


def _differences(saved: Any, own: Any, name: str = "") -> list[str]:
    if isinstance(saved, dict) and isinstance(own, dict) and saved.get("class") == own.get("class"):
        parts = ((f"{name}.{key}".lstrip("."), saved.get(key), own.get(key)) for key in {**saved, **own})
        return [difference for part, there, here in parts for difference in _differences(there, here, part)]
    there, here = (side["class"] if isinstance(side, dict) else reprlib.repr(side) for side in (saved, own))
    return [] if saved == own else [f"{name or 'the class'} is {there} in the state and {here} here"]


def check_like(x: Any, points: Tensor, name: str = "x", min_points: int = 1) -> None:
    """Raise unless ``x`` is finite ``(Q, D)`` of the dtype and dimension of the training points."""
    checks.check_points(x, name, batched=False, min_points=min_points)
    if x.dtype != points.dtype or x.shape[1] != points.shape[1]:
        expected, got = (f"{rows.dtype} of dimension {rows.shape[1]}" for rows in (points, x))
        raise ValueError(f"{name} must be like the training points, {expected}, got {got}")


def in_blocks(function: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
    """Return ``function`` of the rows of ``x``, block by block; a row needs ``width`` numbers of memory."""
    rows = rows_of_block(8 * width, x.device)  # float64, in which some methods compute
    return torch.cat([function(block) for block in x.split(rows)])
