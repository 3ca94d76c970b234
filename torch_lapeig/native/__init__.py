"""Compiled products with sparse rows in memory, and loops of them: filters, conjugate gradients.

Products of sparse rows with blocks of columns take half the time of MKL's. On a graph of some thousand nodes, an
operation of torch takes less time than its call, and solvers make hundreds of calls. `hatch_build.py` compiles
`kernels.c` where the package is installed and a C compiler is found. Without one, with ``TORCH_LAPEIG_COMPILED=0``, and
on tensors that C cannot read, the solvers compute in torch, with equal answers.

A call lets other threads of Python run, and shares its work with as many threads as torch may use at the call.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import warnings
from ctypes import c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from torch_lapeig.support.threads import is_forked, is_watched
from torch_lapeig.support.tuning import ALONE, COMPILED_PART, PARTS_OF_THREAD

FOLDER, LIBRARY = Path(__file__).parent, "kernels.so"
TYPES = {torch.float32: ("float", c_float), torch.float64: ("double", c_double)}
LANES = 4  # columns or matrices that are solved side by side, at most
LINE_BYTES, LINE = 64, 8  # of a line of the cache: bytes, and numbers of float64, of which blocks have whole lines
QUERIES = 4  # queries whose distances are measured side by side
# Rows up to which matrices side by side take less time than LAPACK: 1/3 of the time with 24 rows, 0.55 with 64, 0.7
# with 100, more with 128, which leave the second cache. With fewer matrices lanes stay empty.
SMALL, FEW = 100, 3

# Functions of the library with their results and arguments: n is an int64, d a double, p a pointer. A name that ends in
# _ has a variant for float and one for double.
FUNCTIONS = {
    "count_part": "n:p",
    "fill_part": ":p",
    **dict.fromkeys(("product_", "edges_", "pairs_", "tension_", "nearest_"), ":pnn"),
    **dict.fromkeys(("complement", "eigh", "filter", "ritz"), ":pnn"),
    "subspace": "n:p",
    "shape_of": "p:nppp",
    "sizes_of": ":ppp",
    "release": ":p",
    "numbers_of": "n:ppppdpp",
    "solve_factors": "n:ppppn",
    "next_block": "n:ppnn",
    "extend_space": "n:pnnn",
}
# The structures of the library, their fields in order: also r, a number of the type, and a, `Rows`.
STRUCTURES = {
    "Rows": "p:crow,col,values,diagonal",
    "product": "a:a n:mode,start,stop,base,m,of_y,of_other,of_out p:y,other,out r:times,plus,centre",
    "edges": "p:crow,col n:start,stop,m,of_x,of_y p:x,y,out",
    "pairs": "p:i,j n:count,m,of_x,of_y p:x,y,out",
    "tension": "p:crow,col n:rows,m,of_y p:values,y,out,energy",
    "filter": "a:a n:graphs,n,m,first,groups p:degree,centre,scale,x,out,work",
    "nearest": "n:sets,points,queries,dims,k,itself,wide p:x,asked,valid,numbers,squares,work",
    "part": "p:crow,col,nodes n:total,count p:place,new_crow,row,new_col,edge",
    "eigh": "n:matrices,n,count p:a,values,vectors,work,sound",
    "complement": "n:n,k,u p:vectors,known,values,scales,rest,split,enough,size,round_off d:noise "
    "n:limit,replaced,patience a:a n:graphs p:target,z,left,work",
    "ritz": "a:a n:graphs,n,m,wide,nulls,of_null p:x,null,bound,values,vectors,residuals,work,room,sound d:least",
    "subspace": "p:ritz,filter,rule n:k,threads,part,work,spent "
    "p:known,bound,round_off,centre,state,iterations,products,degree,block,centres,scales",
    "rule": "d:beyond,highest,overflow,damping,clean,spare,close,settled,tolerance "
    "n:shown,least_degree,iterations,degree,products",
    "space": "p:shape,l n:n,first,size,width,filled,blocks p:rows,projected,rest,gram d:dependent,least,enough "
    "p:work n:count,begin p:block,room",
}
MATRIX = 0  # how `product` uses rows


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled library; None where there is none, and for one of other sources, with a warning."""
    if os.environ.get("TORCH_LAPEIG_COMPILED") == "0" or not (FOLDER / LIBRARY).exists():
        return None
    try:
        found = ctypes.CDLL(str(FOLDER / LIBRARY))
        found.source.restype = ctypes.c_char_p
        sources = b"".join(source.read_bytes() for source in sorted(FOLDER.glob("*.c")))
        is_same = found.source() == hashlib.sha256(sources).hexdigest().encode()
    except (OSError, AttributeError) as error:
        warnings.warn(f"the compiled loops cannot be loaded ({error}); torch is used instead", stacklevel=2)
        return None
    if not is_same:
        warnings.warn(
            "the compiled loops are of other C sources than these; torch is used instead: install torch_lapeig again",
            stacklevel=2,
        )
        return None
    kinds = {"n": c_int64, "d": c_double, "p": c_void_p, "": None}
    for name, signature in FUNCTIONS.items():
        result, arguments = signature.split(":")
        for function in [name + kind for kind, _ in TYPES.values()] if name.endswith("_") else [name]:
            call = getattr(found, function)
            call.restype, call.argtypes = kinds[result], [kinds[kind] for kind in arguments]
    parallel = c_void_p.in_dll(found, "parallel")
    # A forked process has none of OpenMP's threads, and would wait for them.
    if (team := _openmp()) is not None and not is_forked():
        parallel.value = ctypes.cast(team.GOMP_parallel, c_void_p).value
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: setattr(parallel, "value", None))
    return found


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """Return the functions of the OpenMP library that torch uses; None where torch uses another one.

    Its threads spin for some milliseconds after each operation of torch that they have shared, and would take the time
    of other threads. So the loops use the threads of torch's OpenMP.
    """
    if "OpenMP" not in torch.__config__.parallel_info():
        return None
    functions = ctypes.CDLL(None)  # of all libraries of the process: torch has loaded it by now
    return functions if hasattr(functions, "GOMP_parallel") else None


@functools.cache
def _structure(name: str, dtype: torch.dtype) -> type[ctypes.Structure]:
    """Build a structure of `STRUCTURES`."""
    kinds: dict[str, Any] = {"p": c_void_p, "n": c_int64, "d": c_double, "r": TYPES[dtype][1]}
    if name != "Rows":
        kinds["a"] = _structure("Rows", torch.float64)
    parts = (part.split(":") for part in STRUCTURES[name].split())
    fields = [(field, kinds[kind]) for kind, names in parts for field in names.split(",")]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def structure(name: str, *values: Any, dtype: torch.dtype = torch.float64) -> Any:
    """Fill a structure with the addresses of tensors, valid as long as the tensors live."""
    return _structure(name, dtype)(*[x.data_ptr() if type(x) is Tensor else x for x in values])


def call(name: str, *arguments: Any, dtype: torch.dtype | None = None) -> Any:
    """Call a function of the library, in the variant of ``dtype`` if it is given; tensors pass as addresses."""
    function = getattr(library(), name if dtype is None else f"{name}_{TYPES[dtype][0]}")
    return function(*[_argument(x) for x in arguments])


def _argument(x: Any) -> Any:
    """Return the C value of an argument."""
    if type(x) is Tensor:
        return x.data_ptr()
    return ctypes.byref(x) if isinstance(x, ctypes.Structure) else x


def is_readable(*tensors: Tensor) -> bool:
    """Return whether C can read tensors: dense memory of the processor that no mode of torch watches."""
    if is_watched():
        return False
    if torch.jit.is_tracing() or forward_ad._current_level >= 0:  # type: ignore[attr-defined]
        return False  # results of C have no autograd record and no tangent
    return all(map(_is_plain, tensors))


def _is_plain(x: Tensor) -> bool:
    """Return whether the memory of a tensor holds its values, and no gradient of it is asked for."""
    functorch = torch._C._functorch
    if type(x) is not Tensor or not x.is_cpu or functorch.is_legacy_batchedtensor(x):
        return False
    if functorch.is_functorch_wrapped_tensor(x):
        return False
    return not (x.is_neg() or x._is_zerotensor() or (x.requires_grad and torch.is_grad_enabled()))


def reads(crow: Tensor, col: Tensor, *numbers: Tensor) -> bool:
    """Return whether C reads CSR rows with values ``(E,)`` and blocks ``(n, m)``, all of one dtype.

    A row of a block lies in one piece; from one to the next may be any step.
    """
    dtype = numbers[0].dtype
    is_right = dtype in TYPES and all(x.dtype == dtype and (x.stride(-1) == 1 or x.shape[-1] == 1) for x in numbers)
    return is_right and _reads_rows(crow, col, *numbers)


def _reads_rows(crow: Tensor, col: Tensor, *others: Tensor) -> bool:
    """Return whether C reads int32 CSR rows and the memory of the other tensors."""
    if library() is None or not is_readable(crow, col, *others):
        return False
    return crow.dtype == col.dtype == torch.int32 and crow.is_contiguous() and col.is_contiguous()


def is_for_one_thread(numbers: int) -> bool:
    """Return whether a single-threaded loop over a block of so many numbers is faster than torch's threads."""
    return numbers <= ALONE or torch.get_num_threads() == 1


def room_of_filter(n: int) -> int:
    """Return how many numbers a thread writes in a Chebyshev filter of n nodes: `ROOM_OF_FILTER`."""
    return 2 * n * (2 * LINE + 1)


def _team(work: int) -> tuple[int, int]:
    """Return the number of parts for so many multiplications, and the threads to share the parts."""
    threads = torch.get_num_threads()
    return max(1, min(PARTS_OF_THREAD * threads, work // COMPILED_PART)), threads


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
) -> None:
    """Write times · M Y + plus · other to ``out``, which may be ``other``; `reads` must accept the arguments."""
    rows = structure("Rows", crow, col, values, None)
    steps = (y.stride(0), 0 if other is None else other.stride(0), out.stride(0))
    sizes = (MATRIX, 0, len(crow) - 1, 0, y.shape[1])
    task = structure("product", rows, *sizes, *steps, y, other, out, times, plus, 0, dtype=y.dtype)
    call("product", task, *_team(len(col) * y.shape[1]), dtype=y.dtype)


def pair_squares(x: Tensor, i: Tensor | None, y: Tensor, j: Tensor | None) -> Tensor | None:
    """Return ‖x_i − y_j‖² ``(E,)`` for int64 ``i``, ``j`` ``(E,)``; of all rows of x and the first of y without them.

    Equal rows have equal distances in every call. None where C cannot read them, or a number is of no row.
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
    task = structure("pairs", i, j, count, x.shape[1], x.stride(0), y.stride(0), x, y, out, dtype=x.dtype)
    call("pairs", task, *_team(count * x.shape[1]), dtype=x.dtype)
    return out


def of_edges(crow: Tensor, col: Tensor, x: Tensor, y: Tensor | None, out: Tensor) -> None:
    """Write x_i · y_j of the edges to ``out``; ‖x_i − x_j‖² where there is no ``y``."""
    sizes = (0, len(crow) - 1, x.shape[1], x.stride(0), 0 if y is None else y.stride(0))
    task = structure("edges", crow, col, *sizes, x, y, out, dtype=x.dtype)
    call("edges", task, *_team(len(col) * x.shape[1]), dtype=x.dtype)


def edges_among(crow: Tensor, col: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Return the edges among some nodes of CSR rows, in the order of the nodes, without a pass over the whole graph.

    Returns:
        ``crow``, row and column of each edge, and its number here, int64. None where C cannot read them, where nothing
        is compiled, or where nodes, int64 ``(M,)``, are not distinct or no nodes.
    """
    if nodes.dtype != torch.int64 or nodes.ndim != 1 or not _reads_rows(crow, col, nodes):
        return None
    nodes, total, count = nodes.contiguous(), len(crow) - 1, len(nodes)
    place = np.zeros(total, dtype=np.int32)  # memory that is cleared where it is touched
    new_crow = crow.new_empty(count + 1)
    part = structure("part", crow, col, nodes, total, count, place.ctypes.data, new_crow)
    if (edges := call("count_part", part)) < 0:
        return None
    row, new_col, edge = crow.new_empty(edges), crow.new_empty(edges), nodes.new_empty(edges)
    part.row, part.new_col, part.edge = row.data_ptr(), new_col.data_ptr(), edge.data_ptr()
    call("fill_part", part)
    return new_crow, row, new_col, edge


def eigh(a: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """Return eigenvalues ``(B, n)``, ascending, and the first eigenvectors ``(B, n, count)`` of small matrices.

    Of symmetric ``a`` ``(B, n, n)`` the lower triangle is read. Computed in float64, given back in the dtype of ``a``.
    None where LAPACK is used instead: for large or few matrices, for numbers that are not finite or far from 1, and
    where nothing is compiled.
    """
    (matrices, n, _), dtype = a.shape, a.dtype
    if matrices < FEW or not 0 < n <= SMALL or dtype not in TYPES or library() is None or not is_readable(a):
        return None
    threads, groups = torch.get_num_threads(), -(-matrices // LANES)
    a = a.detach().double().contiguous()
    values, vectors = a.new_empty(matrices, n), a.new_empty(matrices, n, count)
    room = a.new_empty(min(groups, threads) * (2 * n + 5) * n * LANES)
    sound = a.new_empty(matrices, dtype=torch.int64)
    call("eigh", structure("eigh", matrices, n, count, a, values, vectors, room, sound), groups, threads)
    return (values.to(dtype), vectors.to(dtype)) if bool(sound.all()) else None


def finds_nearest(points: Tensor, queries: Tensor, valid: Tensor) -> bool:
    """Return whether `nearest` reads these tensors."""
    is_there = library() is not None and is_readable(points, queries, valid)
    return is_there and points.dtype in TYPES and points.dtype == queries.dtype and valid.dtype == torch.bool


def nearest(points: Tensor, queries: Tensor, valid: Tensor, k: int, itself: bool) -> tuple[Tensor, Tensor]:
    """Return numbers and squared distances ``(B, Q, k)`` of the nearest valid points by direct differences.

    Ties end by number.

    Args:
        points, queries: ``(B, N, D)`` and ``(B, Q, D)``. valid: bool ``(B, N)``, of at least k others in each set.
        itself: the queries are the points, none its own neighbour.
    """
    (sets, n, dims), q, lanes = points.shape, queries.shape[1], LINE_BYTES // points.element_size()
    wide, (parts, threads) = -(-n // lanes) * lanes, _team(sets * q * n * dims)
    points, queries, valid = points.contiguous(), queries.contiguous(), valid.contiguous()
    numbers, squares = (points.new_empty(sets, q, k, dtype=dtype) for dtype in (torch.int64, points.dtype))
    room = points.new_empty(min(parts, threads) * (dims + QUERIES + 1) * wide)
    blocks = (points, queries, valid, numbers, squares, room)
    task = structure("nearest", sets, n, q, dims, k, itself, wide, *blocks, dtype=points.dtype)
    call("nearest", task, parts, threads, dtype=points.dtype)
    return numbers, squares


def tension(crow: Tensor, col: Tensor, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ_j m_ij (y_j − y_i) ``(n, m)`` and Σ_j m_ij ‖y_j − y_i‖² ``(n,)``; `reads` must accept the arguments."""
    out, energy = y.new_empty(y.shape), y.new_empty(len(y))
    task = structure("tension", crow, col, *y.shape, y.stride(0), values, y, out, energy, dtype=y.dtype)
    call("tension", task, *_team(2 * len(col) * y.shape[1]), dtype=y.dtype)
    return out, energy


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of A = diag(c) − M as C reads them: CSR, of one graph or of several, one after the other.

    Attributes:
        crow, col: int32, of all nodes. values: M ``(E,)``, float64. diagonal: c ``(total,)``; None for ones.
    """

    crow: Tensor
    col: Tensor
    values: Tensor
    diagonal: Tensor | None

    @classmethod
    def of(cls, crow: Tensor, col: Tensor, values: Tensor, diagonal: Tensor | None) -> Rows | None:
        """Return the rows; None where C cannot read them, or nothing is compiled."""
        values, diagonal = values.detach().contiguous(), None if diagonal is None else diagonal.detach().contiguous()
        if values.dtype != torch.float64 or values.shape != col.shape or not reads(crow, col, values):
            return None
        if diagonal is None:
            return cls(crow, col, values, None)
        if diagonal.shape != (len(crow) - 1,) or diagonal.dtype != values.dtype or not is_readable(diagonal):
            return None
        return cls(crow, col, values, diagonal)

    def reads(self, *blocks: Tensor) -> bool:
        """Return whether C can read blocks of the dtype of the rows."""
        return is_readable(*blocks) and all(x.dtype == self.values.dtype for x in blocks)

    @property
    def pointers(self) -> Any:
        """Return the addresses that C reads, valid as long as the rows live."""
        return structure("Rows", self.crow, self.col, self.values, self.diagonal)

    def filter(self, x: Tensor, centre: Tensor, scale: Tensor, degree: Tensor) -> Tensor:
        """Return T_degree(Ã) X for a block ``(B, N, m)``; Ã = (A − centre) scale / 2, graph by graph.

        Args:
            centre, scale: ``(B,)``. degree: int64 ``(B,)``, at least 1.
        """
        graphs, n, m = x.shape
        if graphs * n != len(self.crow) - 1 or not len(centre) == len(scale) == len(degree) == graphs:
            raise ValueError(
                f"x must have {len(self.crow) - 1} rows, and a filter for each graph, got {tuple(x.shape)}"
            )
        parts, threads = _team(len(self.col) * m * int(degree.max()))
        # The columns of one graph are filtered independently: threads need not wait for each other.
        whole = max(1, -(-(m - 1) // LINE))
        groups = min(threads, parts, whole) if graphs == 1 else 1
        parts = min(parts, graphs * groups)
        x, degree, out = x.contiguous(), degree.long().contiguous(), x.new_empty(x.shape)
        centre, scale = (number.to(x.dtype).contiguous() for number in (centre, scale))
        room = x.new_empty(min(parts, threads) * room_of_filter(n))
        blocks = (degree, centre, scale, x, out, room)
        call("filter", structure("filter", self.pointers, graphs, n, m, 0, groups, *blocks), parts, threads)
        return out

    def complement(self, system: System, target: Tensor, limits: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """Solve by conjugate gradients outside V; see `torch_lapeig.eigen.gradient.complement`.

        Args:
            target: right-hand sides, float64 ``(B, N, k)``. limits: iterations, the period of true residuals, patience.

        Returns:
            The iterates, and the norms of their residuals ``(B, k)``.
        """
        graphs, n, k = target.shape
        width, threads = system.known.shape[2], torch.get_num_threads()
        target, z, left = target.contiguous(), target.new_empty(target.shape), torch.empty_like(system.size)
        room = target.new_empty(min(graphs, threads) * (7 * n + 3 * width) * LANES)
        first = (system.vectors, system.known, system.values, system.scales, system.rest, system.split)
        last = (system.enough, system.size, system.round_off, system.noise, *limits, self.pointers, graphs)
        blocks = (*first, *last, target, z, left, room)
        call("complement", structure("complement", n, k, width - k, *blocks), graphs, threads)
        return z, left


@dataclass(frozen=True, eq=False)
class System:
    """Arrays that `Rows.complement` solves with, float64 and contiguous.

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
