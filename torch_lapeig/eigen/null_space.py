"""Null vectors of a Laplacian in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lapeig.graph.groups import sum_of_groups
from torch_lapeig.graph.pattern import Nodes
from torch_lapeig.support import checks


@dataclass(frozen=True, eq=False)
class NullSpace:
    """Null vectors in closed form: one on each part of the active nodes, in proportion to ``ground``.

    Attributes:
        ground: ``(B, N)``, positive on active nodes and zero on the others, where nothing flows back.
        part: int64 ``(B, N)``, the part of each active node, counted from 0 in each graph.
        counts: int64 ``(B,)``, the number of parts.

    >>> null = NullSpace(torch.ones(1, 3), torch.tensor([[0, 0, 1]]), torch.tensor([2]))  # two parts of three nodes
    >>> null.counts
    tensor([2])
    """

    ground: Tensor
    part: Tensor
    counts: Tensor

    @classmethod
    def constant(cls, like: Tensor) -> NullSpace:
        """Return the null space of each graph's constant vector, for node values ``like`` ``(N,)`` or ``(B, N)``."""
        ground = torch.ones_like(checks.primal(like)).reshape(-1, like.shape[-1])
        part = torch.zeros_like(ground, dtype=torch.int64)
        return cls(ground, part, part.new_ones(len(part)))

    def part_of(self, graphs: slice, nodes: Tensor | slice = slice(None)) -> NullSpace:
        """Return the null space of some graphs of the batch, with some nodes in an order."""
        return NullSpace(self.ground[graphs, nodes], self.part[graphs, nodes], self.counts[graphs])

    def vectors(self, m: int, most: int | None = None, nodes: Nodes | None = None) -> Tensor:
        """Return the first ``m`` of an orthonormal basis, ``(B, N, m)``, then zeros; ``most``: no fewer parts.

        A Householder reflection turns the vectors of the parts, so that the first is the whole graph's. ``nodes`` sums
        over the places where nodes lie.
        """
        total = (Nodes() if nodes is None else nodes).sum
        if m == 1:  # the null vector of the whole graph
            length = total(self.ground.square().sum(1, keepdim=True)).sqrt()
            return (self.ground / torch.where(length > 0, length, 1))[..., None]
        size = self.ground.square()
        most = max(int(self.counts.max()), m, 1) if most is None else most
        place = self.part + most * torch.arange(len(size), device=size.device)[:, None]
        volume = total(sum_of_groups(size.flatten(), place.flatten(), len(size) * most).reshape(-1, most))
        # −H = 2 w wᵀ / wᵀw − I with w = e_1 + s takes e_1 to s, the root of each part's share of the volume.
        whole = volume.sum(1, keepdim=True)
        w = (volume / torch.where(whole > 0, whole, 1)).sqrt()
        w[:, 0] += 1
        number = torch.arange(m, device=size.device)
        at_node = (self.part[..., None] == number).to(w.dtype)
        scale = 2 / w.square().sum(1)
        turn = scale[:, None, None] * w.gather(1, self.part)[..., None] * w[:, None, :m] - at_node
        unit = (size / volume.gather(1, self.part)).sqrt()
        basis = torch.where(self.ground > 0, unit, 0)[..., None] * turn
        return basis.masked_fill((number >= self.counts[:, None])[:, None, :], 0)
