"""Operations common to sparse and dense patterns: lengths of edges, sums and maxima over all nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_lapeig.graph.groups import median_of_groups
from torch_lapeig.graph.products import smoothness, squared_lengths
from torch_lapeig.support import checks


class Nodes:
    """Operations on all nodes of a graph at once; here this process holds them all.

    Reductions over nodes go through these methods, so that the rows of a graph may lie on several ranks
    (`torch_lapeig.distributed`). ``sum`` and ``maximum`` are given this process's own result.
    """

    is_sharded = False
    places = 1  # number of places; a loss divides shared terms by it

    def sum(self, x: Tensor) -> Tensor:
        """Return Σ over the places where nodes lie; differentiable."""
        return x

    def maximum(self, x: Tensor) -> Tensor:
        """Return the maximum over the places where nodes lie, elementwise; without gradients."""
        return x

    def shared(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return small tensors computed wherever nodes lie, identical everywhere, so that decisions agree."""
        return tensors

    def any(self, flag: Tensor) -> bool:
        """Return whether a flag ``()`` is true in one of the places."""
        return bool(flag)

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest magnitude in each column, ``(..., N, m)`` to ``(..., m)``, or NaN; without gradients."""
        return checks.primal(x).abs().amax(-2)

    def centre(self, x: Tensor) -> Tensor:
        """Return the mean ``(..., 1, D)`` of node values ``(..., N, D)``, a constant."""
        return checks.primal(x).mean(-2, keepdim=True)

    def squared_lengths(self, x: Tensor) -> Tensor:
        """Return ‖x_i − x_j‖² on the edges for ``(..., N, D)``, by direct differences; differentiable."""
        return squared_lengths(x, self)

    def smoothness(self, values: Tensor, y: Tensor) -> Tensor:
        """Return ½ Σ m_ij ‖y_i − y_j‖² for symmetric values m on the edges, by direct differences; differentiable."""
        return smoothness(values, y, self)

    def direct_tension(self, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return `smoothness` and Σ_j m_ij (y_j − y_i) by differences, no gradients; None where products are faster."""
        return None

    def medians(self, values: Tensor, group: Tensor, total: int) -> Tensor:
        """Return the lower median ``(total,)`` of the values on the edges of each group; 1 for an empty group."""
        return median_of_groups(values, group, total)

    def numbered_parts(self, labels: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Return component labels ``(B, N)`` counted over active nodes (0 elsewhere), and their number ``(B,)``."""
        labels = labels - labels.amin(1, keepdim=True)
        present = torch.zeros(len(labels), labels.shape[1] + 1, dtype=torch.int64, device=labels.device)
        present.scatter_(1, torch.where(active, labels, labels.shape[1]), 1)
        present = present[:, :-1]
        number = present.cumsum(1) - 1
        return torch.where(active, number.gather(1, labels), 0), present.sum(1)

    def noise(self, m: int, seed: int, dtype: torch.dtype) -> Tensor | None:
        """Return random columns ``(N, m)`` that belong to the nodes; None where a generator draws them."""
        return None

    def signs(self, x: Tensor) -> Tensor:
        """Return ±1 for each column of ``(B, N, m)``: see `signs`."""
        return signs(x)

    def multigrid(self, operator: Any, options: Any) -> Any:
        """Return a preconditioner of an operator whose rows lie in several places; None for rows in one place."""
        return None

    def eigenpairs(self, *request: Any) -> Any:
        """Solve a Laplacian whose rows lie in several places by the default solver; None for rows in one place."""
        return None

    def agree(self, call: str, check: Callable[[], dict[str, Any] | None]) -> None:
        """Run a check. Where nodes lie in several places, raise in all of them unless all pass, with equal facts.

        Args:
            call: the name of the call, which must agree in all places.
            check: raises, or returns the facts to compare.
        """
        check()


def signs(vectors: Tensor) -> Tensor:
    """Return ±1 for each column of ``(B, N, k)``, ``(B, 1, k)``, that makes its entry of largest magnitude positive.

    Among entries within 0.1 % of the largest the first one counts, so that round-off cannot decide between the two
    ends of a symmetric graph.
    """
    bare = vectors.detach()
    size = bare.abs()
    first = (size >= 0.999 * size.amax(-2, keepdim=True)).to(torch.int8).argmax(-2, keepdim=True)
    return 1 - 2 * bare.gather(-2, first).lt(0).to(bare.dtype)
