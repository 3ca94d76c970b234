"""Edge weightings: small modules from points and a graph to the same graph with weights, with gradients."""

from __future__ import annotations

import abc
import math
from typing import Literal

import torch
from torch import Tensor, nn

from torch_lapeig import _checks
from torch_lapeig.graph import Graph


class Weighting(nn.Module, abc.ABC):
    """What a weighting has to say: its bandwidth on a graph, and the logarithm of its kernel.

    Called as ``weighting(x, graph)``, it multiplies the weights of ``graph`` (1, or ½ for the one-sided edges of
    ``symmetrize="mean"``) by the kernel of the edge lengths.
    """

    @abc.abstractmethod
    def bandwidth(self, squared_lengths: Tensor, graph: Graph) -> Tensor:
        """Bandwidth ``(B,)`` of each graph from its squared edge lengths ``(E,)``."""

    @abc.abstractmethod
    def log_affinity(self, squared_lengths: Tensor, bandwidth: Tensor) -> Tensor:
        """Logarithm of the kernel, elementwise in squared lengths and bandwidth that broadcast together."""

    def forward(self, x: Tensor, graph: Graph) -> Graph:
        """``graph`` with its weights times the kernel; gradients flow to ``x`` and the bandwidth on its edges only.

        Args:
            x: points ``(N, D)`` or ``(B, N, D)``, those of the graph.
            graph: the edges to weight.
        """
        squared_lengths = graph.squared_lengths(x)
        bandwidth = self.bandwidth(squared_lengths, graph)[graph.item]
        return graph.with_weight(graph.weight * self.log_affinity(squared_lengths, bandwidth).exp())


class SimpleWeights(Weighting):
    """W_ij = 1 on every edge, the limit t → ∞ of the heat kernel (Belkin & Niyogi 2003, section 2, step 2b)."""

    def bandwidth(self, squared_lengths: Tensor, graph: Graph) -> Tensor:
        """Infinity ``(B,)``."""
        return squared_lengths.new_full((graph.batch_size,), torch.inf)

    def log_affinity(self, squared_lengths: Tensor, bandwidth: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(squared_lengths)


class HeatKernel(Weighting):
    """W_ij = exp(−‖x_i − x_j‖² / t) on every edge (Belkin & Niyogi 2003, section 2, step 2a).

    Half of the literature writes 4t for t: their bandwidth times 4 is the ``t`` here. A Gaussian of standard
    deviation σ has ``t`` = 2σ².

    Args:
        t: bandwidth in squared units of the points, positive; ``"median"`` takes the median of the squared edge
            lengths of each graph (the lower one of two), and is differentiated through.
        learnable: make the bandwidth a parameter, kept positive through its logarithm ``log_t``; with
            ``"median"`` that is the logarithm of a factor on the median, 0 at first.

    Raises:
        TypeError, ValueError: ``t`` is not a positive number or ``"median"``. When called, ValueError if the median
            is 0 because at least half of the edges join copies of the same point.
    """

    log_t: nn.Parameter | None

    def __init__(self, t: float | Literal["median"] = "median", *, learnable: bool = False) -> None:
        super().__init__()
        if t != "median":
            _checks.check_positive(t, "t")
        self.t: float | Literal["median"] = t
        start = 0.0 if t == "median" else math.log(t)
        self.register_parameter("log_t", nn.Parameter(torch.tensor(start)) if learnable else None)

    def bandwidth(self, squared_lengths: Tensor, graph: Graph) -> Tensor:
        """Bandwidth t ``(B,)`` of each graph."""
        scale = 1.0 if self.log_t is None else self.log_t.exp().to(squared_lengths.dtype)
        if self.t == "median":
            return _median_per_item(squared_lengths, graph) * scale
        fixed = self.t if self.log_t is None else 1.0
        return squared_lengths.new_full((graph.batch_size,), fixed) * scale

    def log_affinity(self, squared_lengths: Tensor, bandwidth: Tensor) -> Tensor:
        """−‖x_i − x_j‖² / t."""
        return -squared_lengths / bandwidth

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"t={self.t!r}, learnable={self.log_t is not None}"


def _median_per_item(squared_lengths: Tensor, graph: Graph) -> Tensor:
    """Lower median of the squared edge lengths of each graph ``(B,)``."""
    ends = graph.crow[:: graph.num_nodes]
    counts = ends.diff()
    order = squared_lengths.detach().argsort()
    order = order[graph.item[order].argsort(stable=True)]
    # An item without edges has no median and nothing to weight: any positive number does.
    middle = (ends[:-1] + (counts - 1).clamp_min(0) // 2).clamp_max(len(order) - 1)
    medians = torch.where(counts > 0, squared_lengths[order[middle]], 1.0)
    if (medians <= 0).any():
        item = int((medians <= 0).nonzero()[0])
        raise ValueError(
            f't="median" needs edges of positive length, got a median squared length of 0 in graph {item} '
            "(copies of the same point); give t as a number, or remove duplicates"
        )
    return medians
