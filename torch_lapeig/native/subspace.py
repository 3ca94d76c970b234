"""Subspace iteration on Chebyshev filters, whole: `subspace.c`."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig.native import LINE, Rows, call, room_of_filter, structure
from torch_lapeig.native.ritz import least_of, room_of_ritz
from torch_lapeig.support.tuning import COMPILED_PART, UNINTERRUPTED

FINISHED, DEPENDENT = 2, 4  # states of a graph in `subspace.c`


class Spectrum(NamedTuple):
    """Known numbers of spectra, each ``(B,)``: null vectors (int64); bound, round-off, and mean of the values or None,
    in the dtype of the matrix."""

    nullity: Tensor
    bound: Tensor
    round_off: Tensor
    centre: Tensor | None


class Found(NamedTuple):
    """Ritz values ``(B, m)``, vectors ``(B, N, m)``, the maximum number of Chebyshev filters of a graph, and the
    converged graphs, bool ``(B,)``."""

    values: Tensor
    vectors: Tensor
    iterations: int
    finished: Tensor


def subspace(
    rows: Rows, block: Tensor, null: Tensor, k: int, spectrum: Spectrum, rule: tuple[float, ...]
) -> Found | None:
    """Return the pairs that `ChebyshevSubspace` finds; the numbers follow `STRUCTURES` in order.

    None where C cannot read this, and where columns of a graph come to depend on each other, which takes more care.

    Args:
        rows: of B graphs.
        block: random columns ``(B, N, m)``, which are overwritten.
        null: orthonormal null vectors ``(B, N, c)``, or columns of zeros.
    """
    if not (rows.reads(block, null, spectrum.bound) and block.is_contiguous()):
        return None
    (graphs, n, m), threads = block.shape, torch.get_num_threads()
    spectrum, null = Spectrum(*(None if x is None else x.contiguous() for x in spectrum)), null.contiguous()  # type: ignore[arg-type]
    teams = min(graphs, threads)
    workers = threads if graphs == 1 else teams  # threads may share the columns of one graph
    wide = -(-m // LINE) * LINE
    vectors, values, residuals = torch.empty_like(block), *block.new_empty(2, graphs, m)
    counts = torch.zeros(5, graphs, dtype=torch.int64)
    centres, scales = block.new_empty(2, graphs)
    work, of_filter = (
        block.new_empty(teams * 3 * (n + m) * wide),
        block.new_empty(workers * room_of_filter(n)),
    )
    room = torch.empty(teams * room_of_ritz(m), dtype=torch.float64)
    state, iterations, products, degree, sound = counts.unbind()
    sizes = (graphs, n, m, wide, min(null.shape[2], m), null.shape[2])
    blocks = (block, null, spectrum.bound, values, vectors, residuals, work, room, sound)
    of_ritz = structure("ritz", rows.pointers, *sizes, *blocks, least_of(block.dtype))
    of_graphs = (degree, centres, scales)
    filters = structure("filter", rows.pointers, graphs, n, m, 0, 1, *of_graphs, None, block, of_filter)
    given = structure("rule", *rule)
    task = structure(
        "subspace",
        *map(ctypes.addressof, (of_ritz, filters, given)),
        *(k, threads, COMPILED_PART, UNINTERRUPTED, 0),
        *(*spectrum, state, iterations, products, degree, block, centres, scales),
    )
    while call("subspace", task):  # an interrupt can act between calls
        pass
    states = counts[0]
    if bool((states == DEPENDENT).any()):
        return None
    return Found(values, vectors, int(counts[1].max()), states == FINISHED)
