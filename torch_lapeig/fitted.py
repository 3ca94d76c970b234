"""Modules with a state that is fitted: buffers that take the size of the data, and load into a fresh module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torch_lapeig import _checks

PIECE = 2**24  # numbers a block of queries may need: 128 MiB in float64


class FittedModule(nn.Module):
    """A module whose buffers named in ``FITTED`` are None until it is fitted.

    They are part of ``state_dict``, which loads into a module that was fitted to anything else, or to nothing.
    """

    FITTED: ClassVar[tuple[str, ...]] = ("embedding_",)
    embedding_: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in self.FITTED:
            self.register_buffer(name, None)

    def check_fitted(self) -> None:
        """Raise RuntimeError before ``fit``."""
        if self.embedding_ is None:
            raise RuntimeError(f"{type(self).__name__} must be fitted before transform; call fit(x) first")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The buffers take the size of the saved fit, whatever this module was fitted to before, if at all, and stay on
        # the module's device. A state without a fit lacks those of a fitted module: torch reports the missing keys.
        own = next(iter([*self.parameters(), *self.buffers()]), None)
        fit = {name: state_dict.get(prefix + name) for name in self.FITTED}
        if any(saved is not None for saved in fit.values()):
            for name, saved in fit.items():
                device = None if own is None else own.device
                setattr(self, name, None if saved is None else torch.empty_like(saved, device=device))
        super()._load_from_state_dict(state_dict, prefix, *args)


def check_like(x: Any, points: Tensor) -> None:
    """Raise unless ``x`` is finite ``(Q, D)`` of the dtype and dimension of the training points."""
    _checks.check_points(x, batched=False, min_points=1)
    if x.dtype != points.dtype or x.shape[1] != points.shape[1]:
        raise ValueError(
            f"x must be like the training points, {points.dtype} of dimension {points.shape[1]}, got {x.dtype} of "
            f"dimension {x.shape[1]}"
        )


def in_blocks(function: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
    """``function`` of the rows of ``x``, a block at a time: each row needs ``width`` numbers of memory."""
    return torch.cat([function(block) for block in x.split(max(1, PIECE // width))])
