"""Checks of the parts that graphs are made of, once, where users give them.

Compiled loops trust indices. Inside the library patterns and graphs are made without these checks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.sparse import coo_array
from torch import Tensor

from torch_lapeig.support import checks

MOST_NODES = math.isqrt(2**63 - 1)  # edge numbers row * total + col fit int64


def checked_shape(shape: Any, name: str = "shape") -> tuple[int, ...]:
    """Return a shape ``(N,)`` or ``(B, N)`` in Python's integers; raise for anything else, or too many nodes."""
    checks.check_instance(shape, name, (tuple, list), "(N,) or (B, N)")
    if len(shape) not in (1, 2):
        raise ValueError(f"{name} must be (N,) or (B, N), got {tuple(shape)}")
    sizes = tuple(checks.check_count(size, name, 0) for size in shape)
    if math.prod(sizes) > MOST_NODES:
        raise ValueError(f"{name} must be of at most {MOST_NODES} nodes, got {math.prod(sizes)}")
    return sizes


def check_ends(row: Any, col: Any, total: int) -> None:
    """Raise unless the ends of edges are integers ``(E,)`` from 0 to ``total`` − 1, on one device."""
    for end, name in ((row, "row"), (col, "col")):
        checks.check_tensor(end, name)
        if end.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} must be an int32 or int64 tensor, got {end.dtype}; use {name}.long()")
        if end.ndim != 1:
            raise ValueError(f"{name} must have shape (E,), got {tuple(end.shape)}")
    if len(row) != len(col):
        raise ValueError(f"row and col must have one length, got {len(row)} and {len(col)}")
    checks.check_same_device(col, "col", row, "row")
    for end, name in ((row, "row"), (col, "col")):
        if len(end):
            least, most = map(int, end.aminmax())
            if not 0 <= least <= most < total:
                raise IndexError(f"{name} must hold nodes from 0 to {total - 1}, got {least} to {most}")


def check_edges(row: Tensor, col: Tensor, shape: tuple[int, ...], back: Tensor) -> None:
    """Raise ValueError unless edges ascend, have their reverses and stay in their graphs, in O(E).

    ``back`` is the order of the edges by their second nodes, in which each is the reverse of one if all have theirs.
    """
    n = shape[-1]
    follows = (row[1:] > row[:-1]) | ((row[1:] == row[:-1]) & (col[1:] > col[:-1]))
    if not follows.all():
        e = int(follows.int().argmin())
        first, second = ((int(row[at]), int(col[at])) for at in (e, e + 1))
        raise ValueError(
            f"row and col must hold each edge once, ascending by row, then by col, got {first} before {second}; "
            "see Graph.from_edge_index, which takes edges in any order"
        )
    if len(shape) == 2 and len(row) and (row // n != col // n).any():
        e = int((row // n != col // n).int().argmax())
        raise ValueError(
            f"row and col must join nodes of one graph of the batch, got an edge ({int(row[e])}, {int(col[e])}) "
            f"between graphs of {n} nodes"
        )
    lacks = (row[back] != col) | (col[back] != row)
    if lacks.any():
        e = int(lacks.int().argmax())
        here, there = (int(row[e]), int(col[e])), (int(col[back[e]]), int(row[back[e]]))
        edge = here if here < there else there[::-1]
        raise ValueError(
            f"row and col must hold both directions of every edge, got {edge} without {edge[::-1]}; add the "
            "reversed edges"
        )


def check_edge_index(edge_index: Any, num_nodes: int | None = None) -> None:
    """Raise unless edges are int64 ``(2, E)``, with indices of ``num_nodes`` nodes if that is given."""
    checks.check_indices(edge_index, "edge_index", num_nodes)
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape (2, E), got {tuple(edge_index.shape)}")


def check_batch(batch: Any, num_nodes: int, name: str = "batch") -> None:
    """Raise unless ``batch`` gives the graph of each node, int64 ``(num_nodes,)``, ascending."""
    checks.check_indices(batch, name)
    if batch.shape != (num_nodes,):
        raise ValueError(f"{name} must have shape ({num_nodes},), one number for each node, got {tuple(batch.shape)}")
    if (batch.diff() < 0).any() or (num_nodes and batch[0] < 0):
        raise ValueError(f"{name} must be ascending from 0; sort the nodes by graph")
    if num_nodes and (largest := int(batch[-1])) >= num_nodes + checks.LARGEST_WIDTH:
        raise ValueError(
            f"{name} must count the graphs from 0, got {largest} for {num_nodes} nodes; use "
            f"{name}.unique(return_inverse=True)[1], which numbers them"
        )


def check_places(affinity: Any) -> None:
    """Raise ValueError for a square SciPy matrix with entries outside its shape, whose conversion would write there."""
    try:
        if affinity.format in ("csr", "csc", "bsr"):
            affinity.check_format(full_check=True)
        elif affinity.format == "coo":
            coo_array((affinity.data, (affinity.row, affinity.col)), shape=affinity.shape)  # checks the indices
    except ValueError as error:
        raise ValueError(f"affinity must have its entries in {affinity.shape[0]} rows and columns: {error}") from error


def check_weights(weight: Tensor, reverse: Tensor, name: str, slack: float) -> None:
    """Raise unless weights are finite, non-negative, and equal to the reversed edges' weights, up to ``slack``."""
    checks.check_finite(weight, name)
    allowed = slack * checks.largest(weight) if slack else 0.0
    checks.check_non_negative(weight, name, allowed)
    checks.check_symmetric(weight, reverse, name, allowed)
