"""Calls of the compiled loops: which tensors C can read, and one function for each loop.

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
import itertools
import math
import os
import sys
import warnings
from collections.abc import Callable
from ctypes import c_char_p, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.tuning import PARTS_OF_THREAD, SINGLE_THREADED_NUMBERS

ENDINGS = {"darwin": ".dylib", "win32": ".dll"}  # others: .so
FOLDER, LIBRARY = Path(__file__).parent, f"kernels{ENDINGS.get(sys.platform, '.so')}"
TYPES = {torch.float32: "float", torch.float64: "double"}  # as loops for both name them
DTYPES = {name: dtype for dtype, name in TYPES.items()}
DTYPES |= {"int32_t": torch.int32, "int64_t": torch.int64, "uint8_t": torch.bool}
# Least multiplications of a part of the work: some 20 µs, where waking a waiting thread takes 5.
COMPILED_PART = 2**18
UNINTERRUPTED = 2**31  # multiplications after which a solve lets Python be interrupted: about a second


LINE = 8  # numbers of float64 in a line of the cache; blocks have whole lines
# Numbers of `kernels.h`, which `library` compares.
NUMBERS = {"LINE": LINE, "BLOCK": 4, "SINGULAR": -1, "NO_MEMORY": -2, "FINISHED": 2, "DEPENDENT": 4, "STOPPED": 5}
KINDS = {"int64_t": c_int64, "double": c_double, "float": c_float}  # of fields that are no addresses
num_threads: Callable[[], int] = torch.get_num_threads  # of a loop
if hasattr(os, "register_at_fork"):  # a forked process has no threads of OpenMP, and would wait for them
    os.register_at_fork(after_in_child=lambda: globals().update(num_threads=lambda: 1))


@functools.cache
def library() -> Any:
    """Return the compiled library; None if there is none, or, with a warning, if it does not fit the package."""
    chosen = os.environ.get("TORCH_LAPEIG_COMPILED", LIBRARY)
    path = FOLDER / (chosen if Path(chosen).suffix else LIBRARY)  # another library, as of `make sanitize`
    if chosen == "0" or not path.exists():
        return None
    try:
        found: Any = ctypes.CDLL(str(path))
        found.source.restype = c_char_p
        sources = b"".join(source.read_bytes() for source in sorted(FOLDER.glob("*.[ch]")))
        if found.source() != hashlib.sha256(sources).hexdigest().encode():
            raise OSError("they belong to other C sources")
        found.structures = _structures(found)
        _check_products(found)
    except (OSError, AttributeError) as error:
        warnings.warn(
            f"the compiled loops of {path} cannot be used, {error}; torch is used instead, with equal answers but "
            "slower: install torch_lapeig again",
            stacklevel=2,
        )
        return None
    return found


def _check_products(found: Any) -> None:
    """Raise OSError where a product of a small matrix is wrong, as of a library that was compiled badly."""
    # In arrays: the first call may be one of torch.func, whose tensors have no memory.
    crow, col = np.array([0, 1, 3, 4], dtype=np.int32), np.array([1, 0, 2, 1], dtype=np.int32)
    path = np.array([[0.0, 1, 0], [1, 0, 2], [0, 2, 0]])
    for dtype, real in TYPES.items():
        values, y = (np.array(x, dtype=str(dtype).removeprefix("torch.")) for x in ([1, 1, 2, 2], np.arange(9)))
        y, out = y.reshape(3, 3), np.zeros((3, 3), dtype=y.dtype)
        rows = found.structures[f"Rows_{real}"](crow.ctypes.data, col.ctypes.data, values.ctypes.data, None)
        part, steps = {"start": 0, "stop": 3, "columns": 3, "times": 1}, {"y_step": 3, "out_step": 3}
        blocks = {"y": y.ctypes.data, "out": out.ctypes.data}
        task = found.structures[f"Product_{real}"](rows=rows, **part, **steps, **blocks)
        if not getattr(found, f"product_{real}")(ctypes.byref(task), c_int64(1), c_int64(1)):
            raise OSError("there is no memory for them")
        if not np.array_equal(out, path @ y):
            raise OSError("their products are wrong")


class _Declared(ctypes.Structure):
    """Row of the table of what the headers declare; `hatch_build.py` compiles it into the library."""

    _fields_ = (("name", c_char_p), ("value", c_int64), ("fields", c_char_p))


def _structures(found: Any) -> dict[str, Any]:
    """Build the structures that a library declares, by name; raise OSError where C and Python differ."""
    found.declared.restype = ctypes.POINTER(_Declared)
    kinds: dict[str, Any] = dict(KINDS)
    for row in itertools.takewhile(lambda row: row.name, found.declared()):
        name = row.name.decode()
        value = NUMBERS.get(name, row.value)
        if row.fields is not None:
            fields = [field.split() for field in row.fields.decode().split(", ")]
            parts = {
                "_fields_": [(field, c_void_p if kind.endswith("*") else kinds[kind]) for kind, field in fields],
                "__slots__": (),
                "dtypes": {field: DTYPES.get(kind.rstrip("*")) for kind, field in fields},
            }
            kinds[name] = type(name, (ctypes.Structure,), parts)
            value = ctypes.sizeof(kinds[name])
        if value != row.value:
            raise OSError(f"{name} is {row.value} in C and {value} in Python")
    return kinds


def fill_struct(name: str, /, **fields: Any) -> Any:
    """Fill a structure with numbers and the addresses of tensors, which are valid as long as the tensors live."""
    kind = library().structures[name]
    if len(fields) < len(kind._fields_):
        missing = [field[0] for field in kind._fields_ if field[0] not in fields]
        raise TypeError(f"{name} needs a value for each of its fields, got none for {', '.join(missing)}")
    dtypes: Any = kind.dtypes
    for field, x in fields.items():
        if type(x) is Tensor:
            if x.dtype is not dtypes[field]:
                raise TypeError(f"{field} of {name} must be {dtypes[field]}, got {x.dtype}")
            fields[field] = x.data_ptr()
    return kind(**fields)


def call(name: str, *arguments: Any) -> Any:
    """Call a function that is no task; C has an int64 or an address for an int, and a double for a float."""
    function, given = getattr(library(), name), [*arguments]
    function.restype = c_int64
    for i, x in enumerate(arguments):
        if type(x) in (int, float):
            given[i] = c_int64(x) if type(x) is int else c_double(x)
    return function(*given)


def _run(name: str, work: int, *, items: Any = None, **fields: Any) -> Any:
    """Run and return a task of so many multiplications, or of items, whose parts threads share; or MemoryError."""
    threads = num_threads()
    parts = max(1, min(PARTS_OF_THREAD * threads, work // COMPILED_PART)) if items is None else items
    task, threads = fill_struct(name.capitalize(), **fields), threads if parts > 1 else 1
    if not getattr(library(), name)(ctypes.byref(task), c_int64(parts), c_int64(threads)):
        raise MemoryError(f"there is not enough memory for the threads of {name}")
    return task


def memory_supported(*tensors: Tensor) -> bool:
    """Return whether C can read tensors: dense memory of the processor that no mode of torch watches."""
    if is_in_torch_dispatch_mode() or functorch.peek_interpreter_stack() is not None:
        return False
    if torch.jit.is_tracing() or forward_ad._current_level >= 0:  # type: ignore[attr-defined]
        return False
    # Results of C have no autograd record and no tangent, so no derivative may be asked for.
    is_recorded = torch.is_grad_enabled()
    for x in tensors:
        if type(x) is not Tensor or not x.is_cpu or x.is_neg() or (x.requires_grad and is_recorded):
            return False
        try:
            if not x.data_ptr() and x.numel():  # zeros that take no memory
                return False
        except RuntimeError:  # a batch of torch.vmap, or a tensor of another transform
            return False
    return True


def csr_supported(crow: Tensor, col: Tensor, *numbers: Tensor) -> bool:
    """Return whether C reads int32 CSR rows with values ``(E,)`` and blocks ``(n, m)``, all of one dtype."""
    dtype = numbers[0].dtype
    if library() is None or dtype not in TYPES or not crow.dtype == col.dtype == torch.int32:
        return False
    # A row of a block lies in one piece; from one to the next may be any step.
    for x in numbers:
        if x.dtype != dtype or (x.stride(-1) != 1 and x.shape[-1] != 1):
            return False
    return crow.is_contiguous() and col.is_contiguous() and memory_supported(crow, col, *numbers)


def is_for_one_thread(numbers: int) -> bool:
    """Return whether a single-threaded loop over a block of so many numbers is faster than torch's threads."""
    return numbers <= SINGLE_THREADED_NUMBERS or torch.get_num_threads() == 1


# --- Products, edges, neighbours --------------------------------------------------------------------------------------


def product(
    crow: Tensor, col: Tensor, values: Tensor, y: Tensor, out: Tensor, other: Tensor | None, times: float, plus: float
) -> None:
    """Write times · M Y + plus · other to ``out``, which may be ``other``; needs `csr_supported`."""
    real, columns = TYPES[y.dtype], y.shape[1]
    rows = fill_struct(f"Rows_{real}", crow=crow, col=col, values=values, diagonal=None)
    part = {"is_system": False, "start": 0, "stop": len(crow) - 1, "base": 0, "columns": columns}
    steps = {"y_step": y.stride(0), "other_step": 0 if other is None else other.stride(0), "out_step": out.stride(0)}
    terms = {"y": y, "other": other, "out": out, "times": times, "plus": plus, "centre": 0}
    _run(f"product_{real}", len(col) * columns, rows=rows, **part, **steps, **terms)


def pair_squares(x: Tensor, i: Tensor | None, y: Tensor, j: Tensor | None) -> Tensor | None:
    """Return ‖x_i − y_j‖² ``(E,)`` of numbers, of all rows of x and y_0 for None; None where C cannot read them."""
    # Equal rows have equal distances in every call.
    numbers, count = [part for part in (i, j) if part is not None], len(x) if i is None else len(i)
    if library() is None or x.dtype not in TYPES or x.dtype != y.dtype or not memory_supported(x, y, *numbers):
        return None
    is_right = x.shape[1] == y.shape[1] and x.stride(1) == y.stride(1) == 1
    for part, rows in ((i, len(x)), (j, len(y))):
        if part is not None:
            is_right &= part.dtype == torch.int64 and part.is_contiguous() and len(part) == count
            is_right &= not len(part) or 0 <= int(part.numpy().min()) <= int(part.numpy().max()) < rows
    if not is_right:
        return None
    out, columns = x.new_empty(count), x.shape[1]
    sizes = {"count": count, "columns": columns, "x_step": x.stride(0), "y_step": y.stride(0)}
    _run(f"pairs_{TYPES[x.dtype]}", count * columns, i=i, j=j, **sizes, x=x, y=y, out=out)
    return out


def edge_dot_or_sqdist(crow: Tensor, col: Tensor, x: Tensor, y: Tensor | None) -> Tensor:
    """Return x_i · y_j of the edges; ‖x_i − x_j‖² where there is no ``y``; needs `csr_supported`."""
    columns, out = x.shape[1], x.new_empty(len(col))
    sizes = {"rows": len(crow) - 1, "columns": columns}
    steps = {"x_step": x.stride(0), "y_step": 0 if y is None else y.stride(0)}
    edges = {"crow": crow, "col": col, "x": x, "y": y, "out": out}
    _run(f"edges_{TYPES[x.dtype]}", len(col) * columns, **edges, **sizes, **steps)
    return out


def tension(crow: Tensor, col: Tensor, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return pulls Σ_j m_ij (y_j − y_i) ``(n, m)``, energies Σ_j m_ij ‖y_j − y_i‖² ``(n,)``; None where C cannot."""
    if len(col) != len(values) or len(crow) != len(y) + 1 or not csr_supported(crow, col, values, y):
        return None
    (rows, columns), pull, energy = y.shape, y.new_empty(y.shape), y.new_empty(len(y))
    sizes = {"rows": rows, "columns": columns, "y_step": y.stride(0)}
    edges = {"crow": crow, "col": col, "values": values, "y": y, "out": pull, "energy": energy}
    _run(f"tension_{TYPES[y.dtype]}", 2 * len(col) * columns, **edges, **sizes)
    return pull, energy


def nearest(points: Tensor, queries: Tensor, valid: Tensor, k: int, itself: bool) -> tuple[Tensor, Tensor] | None:
    """Return numbers and squared distances ``(B, Q, k)`` of the nearest valid points, ties by number, or None."""
    is_there = library() is not None and memory_supported(points, queries, valid)
    if not is_there or points.dtype not in TYPES or points.dtype != queries.dtype or valid.dtype != torch.bool:
        return None
    (sets, n, dims), q = points.shape, queries.shape[1]
    points, queries, valid = points.contiguous(), queries.contiguous(), valid.contiguous()
    found, squares = points.new_empty((sets, q, k), dtype=torch.int64), points.new_empty(sets, q, k)
    sizes = {"sets": sets, "points": n, "queries": q, "dimensions": dims, "neighbors": k, "is_self_search": itself}
    blocks = {"point": points, "query": queries, "valid": valid, "found": found, "squares": squares}
    _run(f"nearest_{TYPES[points.dtype]}", sets * q * n * dims, **sizes, **blocks)
    return found, squares


def edges_among(crow: Tensor, col: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Return ``crow``, rows, columns and numbers of the edges among nodes, in their order; None where C cannot."""
    nodes = nodes.contiguous()
    is_there = library() is not None and memory_supported(crow, col, nodes)
    is_right = nodes.dtype == torch.int64 and nodes.ndim == 1 and crow.dtype == col.dtype == torch.int32
    if not (is_there and is_right and crow.is_contiguous() and col.is_contiguous()):
        return None
    total, count = len(crow) - 1, len(nodes)
    place = np.zeros(total, dtype=np.int32)  # the system clears its memory where it is touched
    new_crow = crow.new_empty(count + 1)
    answer = {"new_crow": new_crow, "row": None, "new_col": None, "edge": None}
    rows = {"crow": crow, "col": col, "nodes": nodes, "total": total, "count": count}
    task = fill_struct("Subgraph", **rows, place=place.ctypes.data, **answer)
    if (edges := call("count_edges", ctypes.byref(task))) < 0:
        return None
    row, new_col, edge = crow.new_empty(edges), crow.new_empty(edges), nodes.new_empty(edges)
    task.row, task.new_col, task.edge = row.data_ptr(), new_col.data_ptr(), edge.data_ptr()
    call("fill_edges", ctypes.byref(task))
    return new_crow, row, new_col, edge


def small_eigh(
    a: Tensor, count: int, factor: Tensor | None = None, *, is_whole: bool = False
) -> tuple[Tensor, Tensor] | None:
    """Return eigenvalues ``(..., n)``, ascending, and the first eigenvectors ``(..., n, count)`` of small matrices."""
    # Only the lower triangle of symmetric `a` `(..., n, n)` is read; if `is_whole`, both, which must be equal. They are
    # computed in float64. Times a `factor` `(..., n)`, 1 by default, the vectors have the signs of `signs`. None where
    # LAPACK is used instead: for large matrices, numbers not finite or far from 1, and without compiled loops.
    (*batch, n, _), dtype = a.shape, a.dtype
    matrices = math.prod(batch)
    # Over LAPACK's time this takes a third with 24 rows, 0.6 with 64, 0.8 to 1.1 with 100; of one matrix 0.8 with 64,
    # beside the signs, which would be ten calls more.
    most = 100 if matrices >= 3 else 64 if matrices and (is_whole or factor is not None) else 0
    if not 0 < n <= most or dtype not in TYPES or library() is None or not memory_supported(a):
        return None
    a, factor = a.double().contiguous(), None if factor is None else factor.double().contiguous()
    values, vectors = a.new_empty(*batch, n), a.new_empty(*batch, n, count)
    sizes = {"matrices": matrices, "size": n, "wanted": count, "is_whole": is_whole, "failed": 0}
    task = _run("eigh", 0, items=matrices, **sizes, matrix=a, factor=factor, values=values, vectors=vectors)
    if dtype != torch.float64:
        values, vectors = values.to(dtype), vectors.to(dtype)
    return None if task.failed else (values, vectors)


# --- Rows of a symmetric matrix, and loops of products with them ------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of A = diag(c) − M as C reads them: CSR, of one graph or of several, one after the other."""

    crow: Tensor  # int32, of all nodes
    col: Tensor  # int32
    values: Tensor  # M ``(E,)``, float64
    diagonal: Tensor | None  # c ``(total,)``; None for ones

    @classmethod
    def of(cls, crow: Tensor, col: Tensor, values: Tensor, diagonal: Tensor | None) -> Rows | None:
        """Return the rows; None where C cannot read them, or nothing is compiled."""
        values, diagonal = values.detach().contiguous(), None if diagonal is None else diagonal.detach().contiguous()
        if diagonal is not None and (diagonal.shape != (len(crow) - 1,) or diagonal.dtype != torch.float64):
            return None
        if values.dtype != torch.float64 or values.shape != col.shape:
            return None
        numbers = (values,) if diagonal is None else (values, diagonal)
        return cls(crow, col, values, diagonal) if csr_supported(crow, col, *numbers) else None

    @cached_property
    def task(self) -> Any:
        """Return the rows as part of a task."""
        return fill_struct("Rows_double", crow=self.crow, col=self.col, values=self.values, diagonal=self.diagonal)

    def reads(self, *blocks: Tensor) -> bool:
        """Return whether C can read blocks of the dtype of the rows."""
        return {x.dtype for x in blocks} <= {self.values.dtype} and memory_supported(*blocks)

    def complement(self, target: Tensor, **system: Any) -> tuple[Tensor, Tensor]:
        """Return iterates of conjugate gradients outside V for ``(B, N, k)``, and norms of residuals ``(B, k)``."""
        # The `system` has the numbers and tensors that `kernels.h` declares for a `Complement`, float64, contiguous.
        (graphs, n, k), width = target.shape, system["known"].shape[2]
        target, z, left = target.contiguous(), target.new_empty(target.shape), torch.empty_like(system["size"])
        sizes = {"nodes": n, "wanted": k, "guards": width - k, "graphs": graphs}
        blocks = {"target": target, "solution": z, "residuals": left}
        _run("complement", 0, items=graphs, **sizes, **system, rows=self.task, **blocks)
        return z, left


def least_pivot(dtype: torch.dtype) -> float:
    """Return the least diagonal entry of a Cholesky factor at which unit columns count as independent."""
    return 10 * math.sqrt(torch.finfo(dtype).eps)


class Spectrum(NamedTuple):
    """Known numbers of spectra, each ``(B,)``, in the dtype of the matrix."""

    nullity: Tensor  # int64, number of null vectors
    bound: Tensor
    round_off: Tensor
    centre: Tensor | None  # mean of the values


def subspace(
    rows: Rows, block: Tensor, null: Tensor, k: int, spectrum: Spectrum, settings: dict[str, float]
) -> tuple[Tensor, Tensor, int, Tensor] | None:
    """Return the `RitzPairs` that `ChebyshevSubspace` finds; None where C cannot, or columns become dependent."""
    graphs, n, m = block.shape  # random columns, which are overwritten
    spectrum = Spectrum(*[None if part is None else part.contiguous() for part in spectrum])  # type: ignore[arg-type]
    bound, null, nulls = spectrum.bound, null.contiguous(), null.shape[2]
    fits = graphs * n == len(rows.crow) - 1 and null.shape[:2] == block.shape[:2] and bound.shape == (graphs,)
    if not (fits and rows.reads(block, null, bound) and block.is_contiguous()):
        return None
    values, residuals = block.new_empty(2, graphs, m).unbind()
    vectors, ends = torch.empty_like(block), block.new_empty(2, graphs).unbind()
    state, iterations, products, degree = torch.zeros(4, graphs, dtype=torch.int64).unbind()
    sizes = {"rows": rows.task, "graphs": graphs, "nodes": n, "columns": m}
    known = {"nulls": min(nulls, m), "null_step": nulls, "null": null, "bound": bound}
    answer = {"values": values, "vectors": vectors, "residuals": residuals}
    polynomial = {"degree": degree, "centre": ends[0], "scale": ends[1]}
    parts = {
        "ritz": fill_struct("Ritz", **sizes, **known, x=block, **answer, least_pivot=least_pivot(block.dtype)),
        "filter": fill_struct("Filter", **sizes, first=0, groups=1, **polynomial, x=vectors, out=block),
        "settings": fill_struct("FilterSettings", **settings),
    }
    addresses = dict(zip(parts, map(ctypes.addressof, parts.values()), strict=True))
    work = {"threads": num_threads(), "part_work": COMPILED_PART, "most_work": UNINTERRUPTED, "work_done": 0}
    counts = {"state": state, "iterations": iterations, "products": products}
    task = fill_struct("Subspace", **addresses, wanted=k, **work, **spectrum._asdict(), **counts)
    while (left := call("subspace", ctypes.byref(task))) > 0:  # an interrupt can act between calls
        pass
    if left < 0 or bool((state == NUMBERS["STOPPED"]).any()):
        raise MemoryError(f"there is not enough memory for {graphs} blocks of {n} rows and {m} columns")
    if bool((state == NUMBERS["DEPENDENT"]).any()):
        return None
    return values, vectors, int(iterations.max()), state == NUMBERS["FINISHED"]
