"""Compiled products with sparse rows in memory, and loops of them: steps of Lanczos, filters, conjugate gradients.

Products of sparse rows with blocks of columns take half the time of MKL's. And on a graph of some thousand nodes an
operation of torch takes less time than its call, where solvers make hundreds of them. `hatch_build.py` compiles it where the package is installed and finds a C compiler;
where it has found none, where ``TORCH_LAPEIG_COMPILED=0`` is set, and on tensors that C cannot read, the solvers go
their way in torch, which gives the same answers.

A call runs on the thread it is made from, and lets other threads of Python run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

FOLDER = Path(__file__).parent
LIBRARY = "kernels.so"
TYPES = {torch.float32: "float", torch.float64: "double"}
LANES = 8  # columns that are solved side by side


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled loops; None where there are none, or those of another `kernels.c`."""
    if os.environ.get("TORCH_LAPEIG_COMPILED") == "0" or not (FOLDER / LIBRARY).exists():
        return None
    try:
        found = ctypes.CDLL(str(FOLDER / LIBRARY))
        found.source.restype = ctypes.c_char_p
        is_same = found.source() == hashlib.sha256((FOLDER / "kernels.c").read_bytes()).hexdigest().encode()
    except (OSError, AttributeError) as error:
        warnings.warn(f"the compiled loops cannot be loaded ({error}); torch is used instead", stacklevel=2)
        return None
    if not is_same:
        return None
    for dtype in TYPES.values():
        getattr(found, f"lanczos_{dtype}").restype = ctypes.c_int64
    return found


class _Rows(ctypes.Structure):
    """``Rows`` of `kernels.c`."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("crow", "col", "values", "diagonal")]


class Krylov(ctypes.Structure):
    """What steps of Lanczos change beside the vectors: ``Krylov`` of `kernels.c`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("matrix", "losses")),
        *((name, ctypes.c_double) for name in ("beta", "shift", "noise", "loss", "round_off")),
        *((name, ctypes.c_int64) for name in ("size", "first", "now")),
        *((name, ctypes.c_int32) for name in ("is_mended", "twice")),
    ]


class _Complement(ctypes.Structure):
    """``Complement`` of `kernels.c`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n", "k", "u")),
        *((name, ctypes.c_void_p) for name in ("vectors", "known", "values", "scales", "rest", "split")),
        *((name, ctypes.c_void_p) for name in ("enough", "size", "round_off")),
        ("noise", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("limit", "replaced", "patience")),
    ]


class _Task(ctypes.Structure):
    """``Task`` of `kernels.c`, but for its last numbers, which have the type of the rest."""

    _fields_ = [
        ("rows", _Rows),
        *((name, ctypes.c_int64) for name in ("start", "stop", "base", "m", "of_y", "of_other", "of_out")),
        *((name, ctypes.c_void_p) for name in ("y", "other", "out")),
    ]


class _FloatTask(_Task):
    _fields_ = [(name, ctypes.c_float) for name in ("times", "plus", "centre")]


class _DoubleTask(_Task):
    _fields_ = [(name, ctypes.c_double) for name in ("times", "plus", "centre")]


TASKS = {torch.float32: _FloatTask, torch.float64: _DoubleTask}


def is_readable(*tensors: Tensor) -> bool:
    """Whether C can read these: dense memory of the processor, and nothing that watches what torch does."""
    if is_in_torch_dispatch_mode() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if forward_ad._current_level >= 0:  # a tensor may carry a tangent
        return False
    needs_graph = torch.is_grad_enabled()
    return all(type(x) is Tensor and x.is_cpu and not (needs_graph and x.requires_grad) for x in tensors)


def reads(crow: Tensor, col: Tensor, values: Tensor, *blocks: Tensor) -> bool:
    """Whether something is compiled for CSR rows and blocks ``(..., m)`` of their dtype, rows of these in one piece."""
    if library() is None or values.dtype not in TYPES or not is_readable(crow, col, values, *blocks):
        return False
    if crow.dtype != torch.int32 or col.dtype != torch.int32 or not (col.is_contiguous() and values.is_contiguous()):
        return False
    return all(x.dtype == values.dtype and (x.stride(-1) == 1 or x.shape[-1] == 1) for x in blocks)


def product(
    crow: Tensor,
    col: Tensor,
    values: Tensor,
    y: Tensor,
    out: Tensor,
    other: Tensor | None = None,
    *,
    times: float = 1,
    plus: float = 1,
    is_pull: bool = False,
) -> Callable[[slice], None]:
    """A function that writes some rows of times · M Y + plus · other to ``out``, of what `reads` says yes to.

    ``is_pull``: Σ_j m_ij (y_j − y_i) in the place of Σ_j m_ij y_j. ``other`` may be ``out``.
    """
    rows = _Rows(crow.data_ptr(), col.data_ptr(), values.data_ptr(), None)
    steps = (y.stride(0), 0 if other is None else other.stride(0), out.stride(0))
    at = (y.data_ptr(), None if other is None else other.data_ptr(), out.data_ptr())
    call = getattr(library(), f"{'pull' if is_pull else 'product'}_{TYPES[y.dtype]}")

    def write(part: slice) -> None:
        call(ctypes.byref(TASKS[y.dtype](rows, part.start, part.stop, 0, y.shape[1], *steps, *at, times, plus, 0)))

    return write


def of_edges(
    crow: Tensor, col: Tensor, x: Tensor, y: Tensor, out: Tensor, *, is_length: bool = False
) -> Callable[[slice], None]:
    """A function that writes x_i · y_j of the edges of some rows to ``out``; ‖x_i − y_j‖² for ``is_length``."""
    call = getattr(library(), f"{'lengths' if is_length else 'products'}_{TYPES[x.dtype]}")
    blocks = (x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), out.data_ptr())
    ints = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    arguments = [kind(value) for kind, value in zip(ints, blocks, strict=True)]
    edges = (ctypes.c_void_p(crow.data_ptr()), ctypes.c_void_p(col.data_ptr()))

    def write(part: slice) -> None:
        ends = (ctypes.c_int64(part.start), ctypes.c_int64(part.stop), ctypes.c_int64(x.shape[1]))
        call(*ends, *edges, *arguments)

    return write


@dataclass(frozen=True, eq=False)
class Rows:
    """diag(c) − M of one graph or of several after each other, CSR, as C reads it.

    Attributes:
        crow, col: int32, of all nodes of the batch. values: M ``(E,)``. diagonal: c ``(total,)``; None for ones.
    """

    crow: Tensor
    col: Tensor
    values: Tensor
    diagonal: Tensor | None

    @classmethod
    def of(cls, crow: Tensor, col: Tensor, values: Tensor, diagonal: Tensor | None) -> Rows | None:
        """None where they cannot be read, or nothing is compiled."""
        if library() is None or crow.dtype != torch.int32 or col.dtype != torch.int32 or values.dtype not in TYPES:
            return None
        parts = [x for x in (crow, col, values, diagonal) if x is not None]
        if not is_readable(*parts):
            return None
        return cls(*(None if x is None else x.detach().contiguous() for x in (crow, col, values, diagonal)))  # type: ignore[arg-type]

    def reads(self, *blocks: Tensor) -> bool:
        """Whether C can read these blocks, of the dtype of the rows."""
        return is_readable(*blocks) and all(x.dtype == self.values.dtype for x in blocks)

    def _call(self, name: str, *arguments: Any) -> Any:
        function: Callable[..., Any] = getattr(library(), name)
        return function(*arguments)

    @property
    def _rows(self) -> _Rows:
        return _Rows(*(None if x is None else x.data_ptr() for x in (self.crow, self.col, self.values, self.diagonal)))

    def lanczos(self, rows: Tensor, state: Krylov, room: np.ndarray, start: int, upto: int, kept: int) -> int:
        """Steps from vector ``start`` on, up to ``upto`` vectors; how many there are then, fewer at an invariant space.

        Args:
            rows: ``(first + size + 1, N)``, rows next to each other in memory. room: float64, as many numbers as rows.
        """
        name = f"lanczos_{TYPES[rows.dtype]}"
        numbers = (ctypes.c_int64(x) for x in (start, upto, kept))
        n, step = ctypes.c_int64(rows.shape[1]), ctypes.c_int64(rows.stride(0))
        at = ctypes.c_void_p(rows.data_ptr())
        where = room.ctypes.data_as(ctypes.c_void_p)
        return int(self._call(name, n, step, self._rows, at, ctypes.byref(state), where, *numbers))

    def filter(
        self,
        x: Tensor,
        graphs: slice,
        centre: Tensor,
        scale: Tensor,
        degree: Tensor,
        out: Tensor,
        rows: Tensor | None = None,
        every: int = 1,
    ) -> None:
        """T_degree(Ã) X for some graphs of a block ``(B, N, m)``, written to ``out``; Ã = (A − centre) scale / 2.

        Args:
            centre, scale: ``(B,)``. degree: int64 ``(B,)``, at least 1. rows: orthonormal rows ``(c, N)`` of one graph
                that are taken out ``every`` so many products.
        """
        n, m = x.shape[1:]
        room = x.new_empty((n + 1) * m)
        step, count = (0, 0) if rows is None else (rows.stride(0), len(rows))
        sizes = (ctypes.c_int64(size) for size in (graphs.start, graphs.stop, n, m))
        blocks = (ctypes.c_void_p(t.data_ptr()) for t in (centre, scale, degree, x, out, room))
        taken = (ctypes.c_int64(step), ctypes.c_int64(count), ctypes.c_void_p(0 if rows is None else rows.data_ptr()))
        self._call(f"filter_{TYPES[x.dtype]}", *sizes, self._rows, *blocks, *taken, ctypes.c_int64(every))

    def complement(
        self, system: System, graphs: slice, target: Tensor, z: Tensor, left: Tensor, limits: tuple[int, int, int]
    ) -> None:
        """Conjugate gradients outside V for some graphs; see `torch_lapeig.eigen.complement`.

        Args:
            target: right-hand sides, float64 ``(B, N, k)``. z, left: of the same, and ``(B, k)``: room for the iterates
                and the norms of their residuals. limits: iterations, those between true residuals, patience.
        """
        _, n, k = target.shape
        width = system.known.shape[2]
        parts = [None if x is None else x.data_ptr() for x in system.parts()]
        asked = _Complement(n, k, width - k, *parts, system.noise, *limits)
        room = target.new_empty((7 * n + 3 * width) * LANES)
        blocks = (ctypes.c_void_p(t.data_ptr()) for t in (target, z, left, room))
        ends = (ctypes.c_int64(graphs.start), ctypes.c_int64(graphs.stop))
        self._call("complement", ctypes.byref(asked), self._rows, *ends, *blocks)


@dataclass(frozen=True, eq=False)
class System:
    """What `Rows.complement` solves with, float64 and contiguous.

    Attributes:
        vectors: V ``(B, N, k)``. known: V and the u guards, ``(B, N, k + u)``. values: ``(B, k)``.
        scales, rest: the preconditioner ``rest x + known (scales ∘ knownᵀ x)``, ``(B, k + u, k)`` and ``(B,)``.
        split: guards to leave out, ``(B, u, k)``, or None. enough, size: residuals that are allowed, and norms of the
            right-hand sides, ``(B, k)``. round_off: of an iterate of norm 1, ``(B,)``, of ``noise`` of the size at most.
    """

    vectors: Tensor
    known: Tensor
    values: Tensor
    scales: Tensor
    rest: Tensor
    split: Tensor | None
    enough: Tensor
    size: Tensor
    round_off: Tensor
    noise: float

    def parts(self) -> tuple[Tensor | None, ...]:
        """The tensors in the order of `kernels.c`."""
        first = (self.vectors, self.known, self.values, self.scales, self.rest, self.split)
        return (*first, self.enough, self.size, self.round_off)
