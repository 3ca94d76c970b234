"""Subspace iteration on Chebyshev filters, whole, and random columns: `subspace.c`."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _compiled
from torch_lapeig._compiled import FILTER, LANE_BYTES, TYPES, Rows, room_of_filter
from torch_lapeig._compiled.ritz import RITZ, least_of, room_of_ritz
from torch_lapeig._tuning import COMPILED_PART, UNINTERRUPTED

# The numbers of `ChebyshevSubspace`, and its options.
Rule = _compiled.structure(
    "Rule",
    "d:beyond,highest,overflow,damping,clean,weak,spare,close,settled,resolved,apart,tolerance "
    "n:shown,least_degree,iterations,degree,products,patient",
)
_Subspace = _compiled.structure(
    "Subspace",
    "p:ritz,filter,rule n:k,threads,part,work,spent p:known,bound,round_off,centre,state,iterations,products,degree,"
    "block,centres,scales",
)
FINISHED, DEPENDENT = 3, 5  # states of a graph in `subspace.c`


class Spectrum(NamedTuple):
    """What is known of spectra, each ``(B,)``: null vectors, int64; bound, round-off, and about the mean of the values
    or None, in the dtype of the matrix."""

    nullity: Tensor
    bound: Tensor
    round_off: Tensor
    centre: Tensor | None


class Found(NamedTuple):
    """Ritz values ``(B, m)``, vectors ``(B, N, m)``, filters of a graph at most, and which graphs have the pairs that
    were asked for, bool ``(B,)``."""

    values: Tensor
    vectors: Tensor
    iterations: int
    finished: Tensor


def subspace(rows: Rows, block: Tensor, null: Tensor, k: int, spectrum: Spectrum, rule: Any) -> Found | None:
    """The pairs that `ChebyshevSubspace` finds, which has the rule.

    None where C cannot read this, and where columns of a graph come to depend on each other, which takes more care.

    Args:
        rows: of B graphs.
        block: random columns ``(B, N, m)``, which are overwritten.
        null: orthonormal null vectors ``(B, N, c)``, or columns of zeros.
    """
    if not (rows.reads(block, null, spectrum.bound) and block.is_contiguous()):
        return None
    (graphs, n, m), dtype, threads = block.shape, block.dtype, torch.get_num_threads()
    spectrum, null = Spectrum(*(None if x is None else x.contiguous() for x in spectrum)), null.contiguous()  # type: ignore[arg-type]
    lanes, teams = LANE_BYTES // block.element_size(), min(graphs, threads)
    workers = threads if graphs == 1 else teams  # threads may share the columns of one graph
    wide = -(-m // lanes) * lanes
    vectors, values, residuals = torch.empty_like(block), *block.new_empty(2, graphs, m)
    counts = torch.zeros(5, graphs, dtype=torch.int64)
    centres, scales = block.new_empty(2, graphs)
    work, of_filter = (
        block.new_empty(teams * 3 * (n + m) * wide),
        block.new_empty(workers * room_of_filter(n, block.element_size())),
    )
    room = torch.empty(teams * room_of_ritz(m), dtype=torch.float64)
    state, iterations, products, degree, sound = (row.data_ptr() for row in counts)
    at, matrix = block.data_ptr(), rows.pointers
    sizes = (graphs, n, m, wide, m, 1, min(null.shape[2], m), null.shape[2], 0, 0)
    out = (x.data_ptr() for x in (values, vectors, residuals, work, room))
    blocks = (at, null.data_ptr(), spectrum.bound.data_ptr(), None)
    ritz = RITZ[dtype](matrix, *sizes, *blocks, *out, sound, least_of(dtype))
    of_graphs = (degree, centres.data_ptr(), scales.data_ptr())
    filters = FILTER[dtype](matrix, graphs, n, m, 0, 1, *of_graphs, None, at, of_filter.data_ptr())
    task = _Subspace(
        *map(ctypes.addressof, (ritz, filters, rule)),
        *(k, threads, COMPILED_PART, UNINTERRUPTED, 0),
        *(None if x is None else x.data_ptr() for x in spectrum),
        *(state, iterations, products, degree, at, *of_graphs[1:]),
    )
    call = getattr(_compiled.library(), f"subspace_{TYPES[dtype][0]}")
    while call(ctypes.byref(task)):  # between calls an interrupt finds its way
        pass
    states = counts[0]
    if bool((states == DEPENDENT).any()):
        return None
    return Found(values, vectors, int(counts[1].max()), states == FINISHED)


def random_columns(active: Tensor, m: int, seed: int, dtype: torch.dtype) -> Tensor | None:
    """Random columns ``(B, N, m)`` of mean 0 and variance 1, the same in every graph; 0 where ``active`` is False.

    None where nothing is compiled, or C cannot read or write this.
    """
    if _compiled.library() is None or dtype not in TYPES or not _compiled.is_readable(active):
        return None
    out, active = torch.empty(*active.shape, m, dtype=dtype), active.contiguous()
    sizes = (ctypes.c_int64(x) for x in (*active.shape, m, seed))
    at = (ctypes.c_void_p(x.data_ptr()) for x in (active, out))
    getattr(_compiled.library(), f"noise_{TYPES[dtype][0]}")(*sizes, *at)
    return out
