"""Linear systems A Z = B of matrices on the edges of a graph, with gradients, and resistance distances.

Their derivatives come from `torch_lapeig.eigen.gradient.rule.outside`, with null vectors in the place of eigenvectors.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torch_lapeig.eigen.gradient.cg import Map, conjugate_gradients
from torch_lapeig.eigen.gradient.rule import outside
from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.eigen.problem import in_unit
from torch_lapeig.eigen.solvers.multigrid import Multigrid, SmoothedAggregation
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.algebra import sum_of_groups
from torch_lapeig.graph.graph import Graph, check_graph
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.tuning import DENSE_SOLVE, rows_of_block

SOLVE_TOLERANCE = 1e-12  # residual relative to the right-hand side, near the limit of float64
EASY_PRODUCTS = 150  # products before a preconditioner is built: about the cost of building multigrid
MOST_PRODUCTS = 3000  # maximum products of the last candidate


def solve_linear(operator: SymmetricOperator | Laplacian, rhs: Tensor) -> Tensor:
    """Return Z of A Z = B by preconditioned conjugate gradients, differentiable in A's entries and in B, at any order.

    A small or dense matrix is factorised. Otherwise conjugate gradients with 150 products show whether the system is
    easy. If it is not, and A is made of affinities with an excess on the diagonal (`SymmetricOperator.excess`),
    multigrid preconditions it.

    Args:
        operator: A, positive definite, float64; gradients flow to its values and its diagonal, in forward mode, too. Or
            the Laplacian D − W of a graph, ``"unnormalized"``, whose null vectors are constant on each component.
        rhs: B, ``(N, m)`` or ``(B, N, m)``, float64; each column of each graph is a separate system. With a
            Laplacian columns sum to 0 on each component.

    Returns: Z of the shape of B; with a `ConvergenceWarning` where the residual of a column is above 1e-12 of its norm
    and above round-off. Of a Laplacian Z = L⁺ B, by the pseudo-inverse: its columns sum to 0 on each component, too.

    Raises: ValueError: null vectors that are not constant; a right-hand side beside a Laplacian that does not sum to 0.

    >>> from torch_lapeig.graph.pattern import DensePattern
    >>> matrix = torch.tensor([[0.0, 0.5], [0.5, 0.0]], dtype=torch.float64)
    >>> operator = SymmetricOperator(
    ...     DensePattern((2,)), matrix, torch.ones(2, dtype=torch.float64)
    ... )
    >>> solve_linear(operator, torch.tensor([[0.75], [0.0]], dtype=torch.float64))
    tensor([[1.0000],
            [0.5000]], dtype=torch.float64)
    """
    expected = "a positive definite SymmetricOperator, or a Laplacian"
    checks.check_instance(operator, "operator", (SymmetricOperator, Laplacian), expected)
    operator = operator.symmetric if isinstance(operator, Laplacian) else operator
    null = operator.null
    if null is not None and operator.most_null and not torch.equal(null.ground > 0, null.ground == 1):
        raise ValueError(
            "operator must have null vectors that are constant on each component, which do not depend on its entries; "
            'use Laplacian(graph, "unnormalized")'
        )
    checks.check_tensor(rhs, "rhs")
    if operator.dtype != torch.float64 or rhs.dtype != torch.float64:
        raise TypeError(f"operator and rhs must be float64, got {operator.dtype} and {rhs.dtype}; use .double()")
    if rhs.ndim != len(operator.shape) + 1 or tuple(rhs.shape[:-1]) != tuple(operator.shape):
        raise ValueError(f"rhs must have shape {(*operator.shape, 'm')}, got {tuple(rhs.shape)}")
    system = _System(operator)
    blocks = rhs.reshape(operator.batch_size, operator.num_nodes, -1)
    left = checks.primal(blocks) - system.project(checks.primal(blocks))
    if system.null.shape[2] and (left.abs().amax(1) > 1e-9 * checks.primal(blocks).abs().amax(1)).any():
        raise ValueError(
            "rhs must sum to 0 on each component of a Laplacian, and be 0 at isolated nodes, got sums of up to "
            f"{left.sum(1).abs().max():.1e}; subtract the mean of each component"
        )
    return system.solution(blocks).reshape(rhs.shape)


def resistance_distances(graph: Graph, pairs: Tensor | None = None, *, commute_time: bool = False) -> Tensor:
    """Compute the effective resistances of pairs of nodes, or commute times, differentiable in the weights.

    R_ij = (e_i − e_j)ᵀ L⁺ (e_i − e_j) with L = D − W is the resistance between i and j of a network with conductances W
    (Klein & Randić 1993). A random walk takes R_ij Σ d steps from i to j and back, with the degrees d of the component
    (Chandra et al. 1989). Each pair is a linear system, solved in blocks; backward passes solve them again.

    Args:
        graph: one graph, sparse or dense, whose weights are conductances.
        pairs: numbers of nodes, int64 ``(2, P)``; default: the ends ``edge_index`` of the edges.
        commute_time: whether to return R_ij Σ d.

    Returns: ``(P,)``, of the dtype of the weights: 0 from a node to itself, infinite between components; with a
    `ConvergenceWarning` where the range of the weights leaves round-off.

    >>> triangle = Graph.from_dense(torch.ones(3, 3, dtype=torch.float64).fill_diagonal_(0))
    >>> resistance_distances(triangle, torch.tensor([[0], [1]]))
    tensor([0.6667], dtype=torch.float64)
    """
    check_graph(graph, "graph", "resistance_distances")
    if pairs is None:
        pairs = graph.edge_index
    checks.check_indices(pairs, "pairs", graph.num_nodes)
    if pairs.ndim != 2 or len(pairs) != 2:
        raise ValueError(f"pairs must have shape (2, P), got {tuple(pairs.shape)}")
    labels = graph.pattern.components(checks.primal(graph.weight))
    place = (labels[pairs[0]] == labels[pairs[1]]).nonzero().flatten()
    inside = (graph.pattern.at_row(labels) == graph.pattern.at_col(labels)).reshape(graph.weight.shape)
    if not inside.all():  # a bridge between components changes no resistance within them
        graph = graph.with_weight(torch.where(inside, graph.weight, graph.weight.detach()))
    laplacian = Laplacian(graph, "unnormalized")
    system, bound = _System(laplacian.symmetric), laplacian.symmetric.bound

    def of_block(block: Tensor) -> Tensor:
        i, j = torch.nn.functional.one_hot(pairs[:, block], graph.num_nodes)
        rhs = (i - j).mT.double()
        z = system.solution(rhs[None])[0]
        found = torch.sum(rhs * z, 0)
        # A residual of round-off, 8 eps ‖L‖ ‖z‖, changes rᵀ z by at most ‖z‖ times itself, mostly by far less.
        if (8 * torch.finfo(z.dtype).eps * bound * z.detach().square().sum(0) > 1e-3 * found.detach()).any():
            checks.warn(
                "weights of this range leave round-off in resistances: they are inexact; drop the smallest weights, "
                "and join the nodes between which the largest ones lie",
                checks.ConvergenceWarning,
            )
        return found

    blocks = place.split(rows_of_block(64 * graph.num_nodes, pairs.device))
    if len(blocks) > 1 and checks.needs_derivatives(*system.parameters):
        from torch.utils.checkpoint import checkpoint  # loads torch's compiler

        found = [checkpoint(of_block, block, use_reentrant=False) for block in blocks]
    else:
        found = [of_block(block) for block in blocks]
    within = torch.cat(found)
    if commute_time:
        within = within * sum_of_groups(laplacian.exact_degrees, labels, graph.num_nodes)[labels[pairs[0, place]]]
    far = torch.full_like(pairs[0], torch.inf, dtype=torch.float64)
    return far.index_copy(0, place, within).to(graph.weight.dtype)


class _System:
    """Matrix A times ``factor`` ``(B,)``, None for 1, and its preconditioners, which the backward pass reuses."""

    def __init__(self, operator: SymmetricOperator) -> None:
        self.operator: SymmetricOperator
        self.parameters, (self.operator, self.factor, _) = operator.parameters, in_unit(operator.frozen())

    @cached_property
    def null(self) -> Tensor:
        """Return V, the known null vectors, ``(B, N, c)``."""
        return self.operator.null_vectors(self.operator.most_null)

    def project(self, x: Tensor) -> Tensor:
        """Return (I − V Vᵀ) X at active nodes."""
        if self.null.shape[2] == 0:
            return x
        return (x - self.null @ self.operator.nodes.inner(self.null, x)) * self.operator.active[..., None]

    def solution(self, rhs: Tensor) -> Tensor:
        """Return the solution for ``(B, N, m)``, with derivatives in the parameters."""
        return outside(self, rhs.new_zeros(len(rhs), 0, 0), self.null, -rhs, *self.parameters)

    @torch.no_grad()
    def solve(self, g: Tensor) -> Tensor:
        """Return Z of A Z = −G: candidates continue from each other's best iterate until all columns are solved."""
        operator, target = self.operator, -self.project(g)
        # Scale by powers of two, which is exact, so that columns of any size are solved alike.
        size = checks.power_of_two(target, (1,))
        target = target / size
        z, rest = torch.zeros_like(target), target
        enough = SOLVE_TOLERANCE * operator.nodes.dots(target, target).sqrt()
        round_off = 8 * torch.finfo(g.dtype).eps * operator.bound[:, None]  # of a solution of length 1

        def allowed(change: Tensor) -> Tensor:
            whole = z + change
            return torch.maximum(enough, round_off * operator.nodes.dots(whole, whole).sqrt())

        for number, (precondition, limit) in enumerate(self._candidates()):
            # In an easy system residuals stay above round-off, and testing for round-off takes a third of the time.
            goal = allowed if number else lambda _: enough
            inverse = precondition if not self.null.shape[2] else lambda r, m=precondition: self.project(m(r))
            change, left = conjugate_gradients(operator.matmul, inverse, rest, operator.nodes.dots, goal, limit)
            solved = (left <= allowed(change)) | ~left.isfinite()
            z = z + change
            if solved.all():
                break
            rest = target - operator.matmul(z)
        else:
            checks.warn(
                f"the linear solve has not reached its tolerance for {int((~solved).sum())} of {solved.numel()} "
                f"columns (largest residual {float(left[~solved].max()):.1e}): they are inexact; check "
                "that the matrix is positive definite, rescale it, or prune its weights",
                checks.ConvergenceWarning,
            )
        # A NaN of the loss is passed on; it is no failure of the solve.
        z = z * size if self.factor is None else z * size * self.factor[:, None, None]
        return torch.where(enough.isfinite()[:, None, :], z, torch.nan)

    def _candidates(self) -> Iterator[tuple[Map, int]]:
        """Yield preconditioners and the maximum iterations of each, the cheapest first."""
        shape, is_sparse = self.operator.shape, self.operator.is_sparse
        if self.operator.batch_size * shape[-1] ** 3 <= DENSE_SOLVE and self._cholesky is not None:
            yield self._cholesky, EASY_PRODUCTS
        yield self._scaling, EASY_PRODUCTS
        better = self._multigrid if is_sparse else self._cholesky
        if better is not None:
            yield better, 2 * EASY_PRODUCTS
        yield self._scaling, MOST_PRODUCTS

    @cached_property
    def _scaling(self) -> Map:
        diagonal = self.operator.diagonal.detach().reshape(self.operator.batch_size, -1, 1)
        divisor = torch.where(diagonal > 0, diagonal, 1)
        return lambda r: r / divisor

    @cached_property
    def _cholesky(self) -> Map | None:
        """Return the preconditioner by Cholesky factors of dense matrices; None if round-off makes one indefinite."""
        operator = self.operator
        n = operator.num_nodes
        dense = operator.to_dense().detach().reshape(-1, n, n) + self.null @ self.null.mT
        dense.diagonal(dim1=-2, dim2=-1).add_(~operator.active)
        factors, failed = torch.linalg.cholesky_ex(dense)
        return None if failed.any() else lambda r: torch.cholesky_solve(r, factors)

    @cached_property
    def _multigrid(self) -> Map | None:
        """Return multigrid of all graphs of a batch as one; the diagonal preconditions nodes that are on no level."""
        if not self.operator.of_affinities or self.operator.null is None:
            return None
        cycle = SmoothedAggregation(single=False)(self.operator)
        if not isinstance(cycle, Multigrid):
            return None
        on_no_level = cycle.scale == 0

        def precondition(r: Tensor) -> Tensor:
            flat = r.reshape(len(on_no_level), -1)
            return torch.where(on_no_level, self._scaling(r).reshape(flat.shape), cycle(flat)).reshape(r.shape)

        return precondition
