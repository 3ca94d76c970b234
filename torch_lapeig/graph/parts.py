"""Parts of the edges of a graph: those at some nodes, and those among some nodes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _checks, _compiled
from torch_lapeig.graph.groups import by_column, offsets_of_groups, places_among


class Part(NamedTuple):
    """Edges among some nodes, in the order of these: where rows begin, rows and columns; and their numbers before."""

    crow: Tensor
    row: Tensor
    col: Tensor
    edge: Tensor


def edges_at(crow: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Edges that begin at ``nodes`` (int64 ``(M,)``): the place in ``nodes`` of each, and its number, as ``crow``."""
    begin = crow.index_select(0, nodes)
    count = crow.index_select(0, nodes + 1) - begin
    position = torch.repeat_interleave(count)
    before = begin - count.cumsum(0, dtype=crow.dtype) + count
    edge = torch.arange(len(position), dtype=crow.dtype, device=nodes.device)
    return position, edge.add_(before.index_select(0, position))


def edges_among(crow: Tensor, col: Tensor, nodes: Tensor) -> Part:
    """The edges among ``nodes`` of CSR rows.

    Raises:
        ValueError: nodes that are none, or a node twice.
    """
    if (found := _compiled.edges_among(crow, col, nodes)) is not None:
        return Part(*found)
    total = len(crow) - 1
    _checks.check_indices(nodes, "nodes", total)
    _checks.check_distinct(nodes, "nodes")
    row, edge = edges_at(crow, nodes)
    number = places_among(nodes, col.index_select(0, edge), total)
    inside = (number >= 0).nonzero().flatten()
    if len(inside) < len(number):
        row, edge, number = (found.index_select(0, inside) for found in (row, edge, number))
    col, order = by_column(row, number, len(nodes))
    return Part(offsets_of_groups(row, len(nodes)), row, col, edge.index_select(0, order))
