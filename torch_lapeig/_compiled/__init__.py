"""Compiled products with sparse rows in memory, and loops of them: filters, conjugate gradients.

Products of sparse rows with blocks of columns take half the time of MKL's. And on a graph of some thousand nodes an
operation of torch takes less time than its call, where solvers make hundreds of them. `hatch_build.py` compiles
`kernels.c` where the package is installed and finds a C compiler; where it has found none, where
``TORCH_LAPEIG_COMPILED=0`` is set, and on tensors that C cannot read, the solvers go their way in torch, with the same
answers.

A call lets other threads of Python run, and shares its work with as many threads as torch may use where it is asked.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import warnings
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from torch_lapeig._threads import is_forked
from torch_lapeig._tuning import ALONE, COMPILED_PART, PARTS_OF_THREAD

FOLDER = Path(__file__).parent
SOURCES, LIBRARY = ("kernels.c", "dense.c", "sparse.c", "ritz.c", "subspace.c", "weights.c"), "kernels.so"
TYPES = {torch.float32: ("float", c_float), torch.float64: ("double", c_double)}
LANES, LANE_BYTES = 8, 64  # columns that conjugate gradients solve side by side, or matrices; bytes of a vector
QUERIES = 4  # whose distances are measured side by side
# Rows of matrices up to which eight side by side take less time than by LAPACK: of 24 rows a fourth, of 64 six tenths.
# Of fewer matrices than these lanes stay empty. `dense.c` has room for so many rows.
SMALL, FEW = 64, 4


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled loops; None where there are none, or those of other sources."""
    if os.environ.get("TORCH_LAPEIG_COMPILED") == "0" or not (FOLDER / LIBRARY).exists():
        return None
    try:
        found = ctypes.CDLL(str(FOLDER / LIBRARY))
        found.source.restype = ctypes.c_char_p
        sources = b"".join((FOLDER / name).read_bytes() for name in SOURCES)
        is_same = found.source() == hashlib.sha256(sources).hexdigest().encode()
    except (OSError, AttributeError) as error:
        warnings.warn(f"the compiled loops cannot be loaded ({error}); torch is used instead", stacklevel=2)
        return None
    if not is_same:
        return None
    for name, _ in TYPES.values():
        for loop in ("subspace", "pairs_of_space"):
            getattr(found, f"{loop}_{name}").restype = c_int64
    for name in (
        "components_of",
        "count_part",
        "numbers_of",
        "solve_factors",
        "next_block",
        "extend_space",
        "ritz_values",
        "eigh_of_one",
    ):
        getattr(found, name).restype = c_int64
    found.shape_of.restype, found.share_inside.restype = c_void_p, c_double
    parallel = c_void_p.in_dll(found, "parallel")
    # A forked process has none of OpenMP's threads, and would wait for them.
    if (team := _openmp()) is not None and not is_forked():
        parallel.value = ctypes.cast(team.GOMP_parallel, c_void_p).value
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: setattr(parallel, "value", None))
    return found


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """Return the functions of the OpenMP that torch computes with; None where it computes with something else.

    Its threads wait for work at full speed, for some milliseconds after each operation of torch that they have shared,
    and would take the time of other threads. So the loops take the same.
    """
    if "OpenMP" not in torch.__config__.parallel_info():
        return None
    functions = ctypes.CDLL(None)  # of all libraries of the process: torch has loaded it by now
    return functions if hasattr(functions, "GOMP_parallel") else None


def structure(name: str, fields: str, real: Any = c_double) -> type[ctypes.Structure]:
    """A structure of `kernels.c`: its fields in order: p (a pointer), n (int64), i (int32), d, r (REAL), a (Rows)."""
    kinds = {"p": c_void_p, "n": c_int64, "i": c_int32, "d": c_double, "r": real, "a": _Rows}
    parts = (part.split(":") for part in fields.split())
    pairs = [(field, kinds[kind]) for kind, names in parts for field in names.split(",")]
    return type(name, (ctypes.Structure,), {"_fields_": pairs})


class _Rows(ctypes.Structure):
    """``Rows`` of `kernels.c`."""

    _fields_ = [(name, c_void_p) for name in ("crow", "col", "values", "diagonal")]


_Complement = structure(
    "Complement",
    "n:n,k,u p:vectors,known,values,scales,rest,split,enough,size,round_off d:noise n:limit,replaced,patience a:a "
    "n:graphs p:target,z,left,work",
)
_TASK = "a:a n:start,stop,base,m,of_y,of_other,of_out p:y,other,out r:times,plus,centre"
_EDGES = "p:crow,col n:start,stop,m,of_x,of_y p:x,y,out"
_PAIRS = "p:i,j n:count,m,of_x,of_y p:x,y,out"
_TENSION = "p:crow,col n:rows,m,of_y p:values,y,out,energy"
_FILTER = "a:a n:graphs,n,m,first,groups p:degree,centre,scale,x,out,work"
_NEAREST = "n:sets,points,queries,dims,k,itself,wide p:x,asked,valid,numbers,squares,work"
_KINDS = (
    ("task", _TASK),
    ("edges", _EDGES),
    ("pairs", _PAIRS),
    ("tension", _TENSION),
    ("filter", _FILTER),
    ("nearest", _NEAREST),
)
_Part = structure("Part", "p:crow,col,nodes n:total,count p:place,new_crow,row,new_col,edge")
_Eigh = structure("Eigh", "n:matrices,n,count p:a,values,vectors,work,sound")
_STRUCTURES = {
    dtype: {kind: structure(kind, fields, real) for kind, fields in _KINDS} for dtype, (_, real) in TYPES.items()
}
FILTER = {dtype: kinds["filter"] for dtype, kinds in _STRUCTURES.items()}


def is_readable(*tensors: Tensor) -> bool:
    """Whether C can read these: dense memory of the processor, and nothing that watches what torch does."""
    if is_in_torch_dispatch_mode() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if torch._C._get_tracing_state() is not None:  # what C writes would not be recorded
        return False
    if forward_ad._current_level >= 0:  # a tensor may carry a tangent
        return False
    return all(map(_is_plain, tensors))


def _is_plain(x: Tensor) -> bool:
    """Whether the memory of a tensor holds what it says, and nobody asks for its gradient."""
    functorch = torch._C._functorch
    if type(x) is not Tensor or not x.is_cpu or functorch.is_legacy_batchedtensor(x):
        return False
    if functorch.is_functorch_wrapped_tensor(x):
        return False
    return not (x.is_neg() or x._is_zerotensor() or (x.requires_grad and torch.is_grad_enabled()))


def reads(crow: Tensor, col: Tensor, *numbers: Tensor) -> bool:
    """Whether C reads CSR rows with values ``(E,)`` on them, and blocks ``(n, m)``, all of one dtype.

    A row of a block lies in one piece; from one to the next may be any step.
    """
    dtype = numbers[0].dtype
    is_right = dtype in TYPES and all(x.dtype == dtype and (x.stride(-1) == 1 or x.shape[-1] == 1) for x in numbers)
    return is_right and reads_rows(crow, col, *numbers)


def reads_rows(crow: Tensor, col: Tensor, *others: Tensor) -> bool:
    """Whether C reads CSR rows, int32, and the memory of others."""
    if library() is None or not is_readable(crow, col, *others):
        return False
    return crow.dtype == col.dtype == torch.int32 and crow.is_contiguous() and col.is_contiguous()


def is_for_one_thread(numbers: int) -> bool:
    """Whether a loop over a block of so many numbers, of one graph, is for one thread, not each product for several."""
    return numbers <= ALONE or torch.get_num_threads() == 1


def room_of_filter(n: int, size: int) -> int:
    """Numbers of ``size`` bytes that a thread writes in a filter of n nodes: `ROOM_OF_FILTER`."""
    return 2 * n * (2 * LANE_BYTES // size + 1)


def _team(work: int) -> tuple[c_int64, c_int64]:
    """Parts of some work, in multiplications, and threads to share them."""
    threads = torch.get_num_threads()
    return c_int64(max(1, min(PARTS_OF_THREAD * threads, work // COMPILED_PART))), c_int64(threads)


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
) -> None:
    """Write times · M Y + plus · other to ``out``, which may be ``other``; of what `reads` says yes to.

    ``is_pull``: Σ_j m_ij (y_j − y_i) in the place of Σ_j m_ij y_j.
    """
    rows = _Rows(crow.data_ptr(), col.data_ptr(), values.data_ptr(), None)
    steps = (y.stride(0), 0 if other is None else other.stride(0), out.stride(0))
    at = (y.data_ptr(), None if other is None else other.data_ptr(), out.data_ptr())
    task = _STRUCTURES[y.dtype]["task"](rows, 0, len(crow) - 1, 0, y.shape[1], *steps, *at, times, plus, 0)
    call = getattr(library(), f"{'pull' if is_pull else 'product'}_{TYPES[y.dtype][0]}")
    call(ctypes.byref(task), *_team(len(col) * y.shape[1]))


def of_edges(crow: Tensor, col: Tensor, x: Tensor, y: Tensor | None, out: Tensor) -> None:
    """Write x_i · y_j of the edges to ``out``; ‖x_i − x_j‖² where there is no ``y``."""
    blocks = (x.data_ptr(), None if y is None else y.data_ptr(), out.data_ptr())
    ends = (0, len(crow) - 1, x.shape[1], x.stride(0), 0 if y is None else y.stride(0))
    task = _STRUCTURES[x.dtype]["edges"](crow.data_ptr(), col.data_ptr(), *ends, *blocks)
    getattr(library(), f"edges_{TYPES[x.dtype][0]}")(ctypes.byref(task), *_team(len(col) * x.shape[1]))


def pair_squares(x: Tensor, i: Tensor | None, y: Tensor, j: Tensor | None) -> Tensor | None:
    """‖x_i − y_j‖² ``(E,)`` for int64 ``i`` and ``j`` ``(E,)``, of all rows of x and the first of y without these.

    The same two rows have the same distance in every call. None where C cannot read them, or a number is of no row.
    """
    numbers = [part for part in (i, j) if part is not None]
    if x.shape[1] != y.shape[1] or len({len(part) for part in numbers}) > 1:
        return None
    if library() is None or x.dtype not in TYPES or x.dtype != y.dtype or not is_readable(x, y, *numbers):
        return None
    is_right = x.stride(1) == y.stride(1) == 1 and all(part.dtype == torch.int64 for part in numbers)
    if not (is_right and all(part.is_contiguous() for part in numbers)):
        return None
    for part, rows in ((i, len(x)), (j, len(y))):
        if part is not None and len(part) and not 0 <= int(part.numpy().min()) <= int(part.numpy().max()) < rows:
            return None
    count = len(x) if i is None else len(i)
    out = x.new_empty(count)
    at = (None if part is None else part.data_ptr() for part in (i, j))
    sizes, blocks = (count, x.shape[1], x.stride(0), y.stride(0)), (part.data_ptr() for part in (x, y, out))
    task = _STRUCTURES[x.dtype]["pairs"](*at, *sizes, *blocks)
    getattr(library(), f"pairs_{TYPES[x.dtype][0]}")(ctypes.byref(task), *_team(count * x.shape[1]))
    return out


def scaled(crow: Tensor, col: Tensor, values: Tensor, nodes: Tensor) -> Tensor:
    """s_i m_ij s_j for values m ``(E,)`` and s ``(n,)``, of what `reads` says yes to."""
    out = torch.empty_like(values)
    blocks = (nodes.data_ptr(), values.data_ptr(), out.data_ptr())
    task = _STRUCTURES[values.dtype]["edges"](crow.data_ptr(), col.data_ptr(), 0, len(crow) - 1, 1, 1, 1, *blocks)
    getattr(library(), f"scaled_{TYPES[values.dtype][0]}")(ctypes.byref(task), *_team(len(col)))
    return out


def edges_among(crow: Tensor, col: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """The edges among some nodes of CSR rows, in the order of the nodes; all of a graph is looked at nowhere.

    Returns:
        ``crow``, row and column of each edge, and its number here, int64. None where C cannot read them, where nothing
        is compiled, or where nodes, int64 ``(M,)``, are not distinct or no nodes.
    """
    if nodes.dtype != torch.int64 or nodes.ndim != 1 or not reads_rows(crow, col, nodes):
        return None
    nodes, total, count = nodes.contiguous(), len(crow) - 1, len(nodes)
    place = np.zeros(total, dtype=np.int32)  # memory that is cleared where it is touched
    new_crow = crow.new_empty(count + 1)
    given = (x.data_ptr() for x in (crow, col, nodes))
    part = _Part(*given, total, count, place.ctypes.data, new_crow.data_ptr())
    if (edges := library().count_part(ctypes.byref(part))) < 0:  # type: ignore[union-attr]
        return None
    row, new_col, edge = crow.new_empty(edges), crow.new_empty(edges), nodes.new_empty(edges)
    part.row, part.new_col, part.edge = row.data_ptr(), new_col.data_ptr(), edge.data_ptr()
    library().fill_part(ctypes.byref(part))  # type: ignore[union-attr]
    return new_crow, row, new_col, edge


def eigh(a: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """Eigenvalues ``(B, n)``, ascending, and the first eigenvectors ``(B, n, count)`` of several small matrices.

    Of symmetric ``a`` ``(B, n, n)`` the lower triangle is read. Computed in float64, given back in the dtype of ``a``.
    None where LAPACK is to be asked: matrices that are large or few, numbers that are not finite or far from 1, nothing
    compiled.
    """
    (matrices, n, _), dtype = a.shape, a.dtype
    if matrices < FEW or not 0 < n <= SMALL or dtype not in TYPES or library() is None or not is_readable(a):
        return None
    threads, groups = torch.get_num_threads(), -(-matrices // LANES)
    a = a.detach().double().contiguous()
    values, vectors = a.new_empty(matrices, n), a.new_empty(matrices, n, count)
    room, sound = a.new_empty(min(groups, threads) * (2 * n + 5) * n * LANES), a.new_empty(matrices, dtype=torch.int64)
    task = _Eigh(matrices, n, count, *(block.data_ptr() for block in (a, values, vectors, room, sound)))
    library().eigh(ctypes.byref(task), c_int64(groups), c_int64(threads))  # type: ignore[union-attr]
    return (values.to(dtype), vectors.to(dtype)) if bool(sound.all()) else None


def finds_nearest(points: Tensor, queries: Tensor, valid: Tensor) -> bool:
    """Whether `nearest` reads these."""
    is_there = library() is not None and is_readable(points, queries, valid)
    return is_there and points.dtype in TYPES and points.dtype == queries.dtype and valid.dtype == torch.bool


def nearest(points: Tensor, queries: Tensor, valid: Tensor, k: int, itself: bool) -> tuple[Tensor, Tensor]:
    """Numbers and squared distances ``(B, Q, k)`` of the nearest valid points by direct differences, ties by number.

    Args:
        points, queries: ``(B, N, D)`` and ``(B, Q, D)``. valid: bool ``(B, N)``, of at least k others in each set.
        itself: the queries are the points, none its own neighbour.
    """
    (sets, n, dims), q, lanes = points.shape, queries.shape[1], LANE_BYTES // points.element_size()
    wide, (parts, threads) = -(-n // lanes) * lanes, _team(sets * q * n * dims)
    points, queries, valid = points.contiguous(), queries.contiguous(), valid.contiguous()
    numbers, squares = (points.new_empty(sets, q, k, dtype=dtype) for dtype in (torch.int64, points.dtype))
    room = points.new_empty(min(parts.value, threads.value) * (dims + QUERIES + 1) * wide)
    blocks = (block.data_ptr() for block in (points, queries, valid, numbers, squares, room))
    task = _STRUCTURES[points.dtype]["nearest"](sets, n, q, dims, k, itself, wide, *blocks)
    getattr(library(), f"nearest_{TYPES[points.dtype][0]}")(ctypes.byref(task), parts, threads)
    return numbers, squares


def tension(crow: Tensor, col: Tensor, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_j m_ij (y_j − y_i) ``(n, m)`` and Σ_j m_ij ‖y_j − y_i‖² ``(n,)``, of what `reads` says yes to."""
    out, energy = y.new_empty(y.shape), y.new_empty(len(y))
    blocks = (x.data_ptr() for x in (values, y, out, energy))
    task = _STRUCTURES[y.dtype]["tension"](crow.data_ptr(), col.data_ptr(), *y.shape, y.stride(0), *blocks)
    getattr(library(), f"tension_{TYPES[y.dtype][0]}")(ctypes.byref(task), *_team(2 * len(col) * y.shape[1]))
    return out, energy


@dataclass(frozen=True, eq=False)
class Rows:
    """A = diag(c) − M of one graph or of several after each other, CSR, as C reads it.

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
        values, diagonal = values.detach().contiguous(), None if diagonal is None else diagonal.detach().contiguous()
        if values.shape != col.shape or not reads(crow, col, values):
            return None
        if diagonal is None:
            return cls(crow, col, values, None)
        if diagonal.shape != (len(crow) - 1,) or diagonal.dtype != values.dtype or not is_readable(diagonal):
            return None
        return cls(crow, col, values, diagonal)

    def reads(self, *blocks: Tensor) -> bool:
        """Whether C can read these blocks, of the dtype of the rows."""
        return is_readable(*blocks) and all(x.dtype == self.values.dtype for x in blocks)

    @property
    def pointers(self) -> _Rows:
        """What C reads, as long as these live."""
        return _Rows(*(None if x is None else x.data_ptr() for x in (self.crow, self.col, self.values, self.diagonal)))

    def filter(self, x: Tensor, centre: Tensor, scale: Tensor, degree: Tensor) -> Tensor:
        """T_degree(Ã) X for a block ``(B, N, m)``; Ã = (A − centre) scale / 2, graph by graph.

        Args:
            centre, scale: ``(B,)``. degree: int64 ``(B,)``, at least 1.
        """
        graphs, n, m = x.shape
        if graphs * n != len(self.crow) - 1 or not len(centre) == len(scale) == len(degree) == graphs:
            raise ValueError(
                f"x must have {len(self.crow) - 1} rows, and a filter for each graph, got {tuple(x.shape)}"
            )
        parts, threads = _team(len(self.col) * m * int(degree.max()))
        # The columns of one graph are filtered each by themselves: threads have nothing to wait for.
        whole = max(1, -(-(m - 1) * x.element_size() // LANE_BYTES))
        groups = min(threads.value, parts.value, whole) if graphs == 1 else 1
        parts = c_int64(min(parts.value, graphs * groups))
        x, degree, out = x.contiguous(), degree.long().contiguous(), x.new_empty(x.shape)
        centre, scale = (number.to(x.dtype).contiguous() for number in (centre, scale))
        room = x.new_empty(min(parts.value, threads.value) * room_of_filter(n, x.element_size()))
        blocks = (degree, centre, scale, x, out, room)
        sizes = (graphs, n, m, 0, groups)
        task = _STRUCTURES[x.dtype]["filter"](self.pointers, *sizes, *(block.data_ptr() for block in blocks))
        getattr(library(), f"filter_{TYPES[x.dtype][0]}")(ctypes.byref(task), parts, threads)
        return out

    def complement(self, system: System, target: Tensor, limits: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """Conjugate gradients outside V; see `torch_lapeig.eigen.complement`.

        Args:
            target: right-hand sides, float64 ``(B, N, k)``. limits: iterations, those between true residuals, patience.

        Returns:
            The iterates, and the norms of their residuals ``(B, k)``.
        """
        graphs, n, k = target.shape
        width = system.known.shape[2]
        parts, threads = c_int64(graphs), c_int64(torch.get_num_threads())
        target, z, left = target.contiguous(), target.new_empty(target.shape), torch.empty_like(system.size)
        room = target.new_empty(min(graphs, threads.value) * (7 * n + 3 * width) * LANES)
        pieces = [None if x is None else x.data_ptr() for x in system.parts()]
        blocks = (block.data_ptr() for block in (target, z, left, room))
        asked = _Complement(n, k, width - k, *pieces, system.noise, *limits, self.pointers, graphs, *blocks)
        library().complement(ctypes.byref(asked), parts, threads)  # type: ignore[union-attr]
        return z, left


@dataclass(frozen=True, eq=False)
class System:
    """What `Rows.complement` solves with, float64 and contiguous.

    Attributes:
        noise: part of the right-hand sides that the round-off of an iterate may come to.
        vectors: V ``(B, N, k)``. known: V and the u guards, ``(B, N, k + u)``. values: ``(B, k)``.
        scales, rest: the preconditioner ``rest x + known (scales ∘ knownᵀ x)``, ``(B, k + u, k)`` and ``(B,)``.
        split: guards to leave out, ``(B, u, k)``, or None. enough, size: residuals that are allowed, and norms of the
            right-hand sides, ``(B, k)``. round_off: of an iterate of norm 1, ``(B,)``.
    """

    noise: float
    vectors: Tensor
    known: Tensor
    values: Tensor
    scales: Tensor
    rest: Tensor
    split: Tensor | None
    enough: Tensor
    size: Tensor
    round_off: Tensor

    def parts(self) -> tuple[Tensor | None, ...]:
        """The tensors in the order of `kernels.c`."""
        first = (self.vectors, self.known, self.values, self.scales, self.rest, self.split)
        return (*first, self.enough, self.size, self.round_off)
