"""The Laplacian of a graph whose weights have signs."""

from __future__ import annotations

from typing import Literal

import torch

from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.directed import SignedGraph
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import check_unchanged


class SignedLaplacian(SymmetricOperator):
    """Laplacian L̄ = D̄ − W of a graph with weights of either sign, D̄ = diag(Σ_j |W_ij|), or I − D̄^-½ W D̄^-½.

    `eigenpairs` takes it as any `SymmetricOperator`. Its quadratic form is ½ Σ |W_ij| (y_i − sign(W_ij) y_j)²: like
    nodes get like values, unlike nodes opposite values (Kunegis et al., *Spectral analysis of signed graphs*, SDM
    2010). It has an eigenvalue 0 for each component that is balanced: whose nodes fall into two camps, with positive
    weights within them and negative ones between them. Its spectrum is then that of the affinities |W_ij|. Null
    vectors are solved for as all others, since a weight that changes its sign may end them.

    Args:
        graph: one graph or a batch, sparse or dense; gradients flow to its weights. |w| has no derivative at 0: there
            the gradient is the mean of the derivatives from both sides, and 0 for a self loop. A positive self loop
            cancels as in a `Laplacian`; a negative one adds 2 |W_ii| to the diagonal.
        normalization: ``"symmetric"``, with a spectrum in [0, 2], or ``"unnormalized"``.

    >>> # a triangle with one negative edge: not balanced
    >>> weight = torch.tensor([[0.0, 1.0, -1.0], [1.0, 0.0, 1.0], [-1.0, 1.0, 0.0]])
    >>> from torch_lapeig import eigenpairs
    >>> eigenpairs(
    ...     SignedLaplacian(SignedGraph.from_dense(weight), "unnormalized"), 3
    ... ).values
    tensor([1., 1., 4.])
    """

    graph: SignedGraph
    normalization: str

    @precision.full_precision
    def __init__(self, graph: SignedGraph, normalization: Literal["symmetric", "unnormalized"] = "symmetric") -> None:
        checks.check_choice(normalization, "normalization", ("symmetric", "unnormalized"))
        expected = "a SignedGraph; see SignedGraph.from_dense, which takes the matrix of a Graph too"
        checks.check_instance(graph, "graph", SignedGraph, expected)
        laplacian, pattern = Laplacian(graph.affinities(), normalization), graph.pattern
        plain, s, given = laplacian.symmetric, laplacian.scale, graph.weight.dtype
        proper = pattern.without_loops(graph.weight)
        # |w| has the derivative 0 at 0, but the entry −w of the matrix has a derivative of its own.
        values = torch.where(proper == 0, pattern.scaled(proper, s), plain.values * proper.sign())
        loops = pattern.sum_rows(pattern.scaled(torch.relu(proper - graph.weight), s))
        diagonal = plain.diagonal + 2 * loops
        checks.set_frozen(self, graph=graph, normalization=normalization)
        super().__init__(pattern, values.to(given), diagonal.to(given), active=plain.active, trusted=True)
        check_unchanged(self, "graph.weight has", graph.weight)

    def check(self) -> None:
        """Raise ValueError if entries are not finite, or the weights have changed in place."""
        check_unchanged(self, "graph.weight has", self.graph.weight)
        super().check()
