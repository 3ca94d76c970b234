"""Smoothed-aggregation multigrid of a graph Laplacian in torch operations.

The quality of this preconditioner does not depend on the size of the graph. On each level the nodes are grouped into
aggregates around a maximal set of nodes that are more than two strong edges apart. The coarse space is spanned by the
indicators of the aggregates after one step of damped Jacobi, P = (I − ω D⁻¹ L) P₀, ω = 4/(3ρ(D⁻¹ L)); the coarse matrix
is Pᵀ L P (Vaněk, Mandel & Brezina 1996). The independent sets are found in parallel (Bell, Dalton & Olson 2012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.solver import Inverse, check_options
from torch_lapeig.eigen.symmetric import SymmetricOperator, entries_of
from torch_lapeig.graph.algebra import csr, label_components, multiply, offsets_of_groups, sum_of_groups, with_diagonal
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import rows_of_block


class Level(NamedTuple):
    """Level of a hierarchy above the coarsest, scaled to a unit diagonal, so that float32 holds weights of any size."""

    matrix: Tensor  # CSR ``(n, n)``, D^-½ L D^-½ of the level's L and its diagonal D; zero rows for nodes without edges
    radius: float  # estimate of the largest eigenvalue
    # CSR from the next coarser level to this one, in the scaled coordinates, and its transpose
    prolongation: Tensor
    restriction: Tensor


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Levels of a graph Laplacian from fine to coarse."""

    levels: tuple[Level, ...]
    coarse_inverse: Tensor  # pseudo-inverse of the matrix of the coarsest level, in the dtype of the cycle
    diagonal: Tensor  # ``(N, 1)`` float64, of the finest Laplacian
    smoothing: int  # number of products of each smoothing
    # number of independent vectors that a cycle enlarges alike, though their eigenvalues may differ by decades
    near_null: int

    def cycle(self, b: Tensor, level: int = 0) -> Tensor:
        """Return one V-cycle from x = 0 in scaled coordinates of a level, ``(n, m)``: a positive semidefinite map."""
        if level == len(self.levels):
            return self.coarse_inverse @ b
        matrix, radius, prolongation, restriction = self.levels[level]

        def subtracted(x: Tensor, r: Tensor) -> Tensor:
            return multiply(matrix, x, r, times=-1, out=r)

        # Allocate working memory once: allocating large blocks costs as much as a product.
        r, d = (torch.empty_like(b, memory_format=torch.contiguous_format) for _ in range(2))
        x = smooth(subtracted, r.copy_(b), d, torch.zeros_like(r), radius, self.smoothing)
        coarse = self.cycle(multiply(restriction, multiply(matrix, x, b, times=-1, out=r)), level + 1)
        multiply(prolongation, coarse, x, out=x)
        return smooth(subtracted, multiply(matrix, x, b, times=-1, out=r), d, x, radius, self.smoothing)


def smooth(
    subtracted: Callable[[Tensor, Tensor], Tensor], r: Tensor, d: Tensor, x: Tensor, radius: float, steps: int
) -> Tensor:
    """Smooth ``x`` of residual ``r`` by Chebyshev iteration over the upper spectrum; ``subtracted`` returns r − A d."""
    # d and x are overwritten, and ``subtracted`` may overwrite r.
    centre, half = 0.5 * (1 + SMOOTHED_FROM) * radius, 0.5 * (1 - SMOOTHED_FROM) * radius
    ratio = half / centre
    x.add_(torch.div(r, centre, out=d))
    for _ in range(steps - 1):
        r = subtracted(d, r)
        following = 1 / (2 * centre / half - ratio)
        x.add_(d.mul_(following * ratio).add_(r, alpha=2 * following / half))
        ratio = following
    return x


@dataclass(frozen=True, eq=False)
class Multigrid:
    """Cycle of a hierarchy on one process, as an approximate A⁻¹ on blocks ``(N, m)`` of one graph."""

    hierarchy: Hierarchy
    scale: Tensor  # N D^-½ ``(N, 1)``, from the coordinates of A = N⁻¹ L N⁻¹ to the scaled ones
    near_null: int

    def __call__(self, r: Tensor) -> Tensor:
        """Return approximately A⁻¹ r; columns are scaled to length 1 before they are cast to the levels' dtype."""
        b = self.scale * r
        size = torch.linalg.vector_norm(b, dim=0).clamp_min(torch.finfo(r.dtype).tiny)
        x = self.hierarchy.cycle(b.div_(size).to(self.hierarchy.coarse_inverse.dtype))
        return x.to(r.dtype).mul_(self.scale).mul_(size)


SMOOTHED_FROM = 0.1  # fraction of the spectral radius above which the smoother damps
# Least diagonal of an aggregate, over the largest diagonal per mass. A cycle enlarges components on faint edges by the
# inverse of their weight; in float32 their round-off would soon exceed all else and overflow.
LEAST_DIAGONAL = 1e-9


@dataclass(frozen=True)
class SmoothedAggregation:
    """Multigrid as a preconditioner of Laplacians (Vaněk, Mandel & Brezina 1996).

    Args:
        coarsest: maximum number of nodes of the coarsest level, which a dense pseudo-inverse solves.
        max_complexity: maximum entries of all levels over the entries of the finest, positive; aggregates stay
            unsmoothed where smoothing would exceed it.
        smoothing: number of products with the matrix in each smoothing step.
        single: cycle in float32, also for float64 problems.
        seed: of the random priorities.

    >>> from torch_lapeig import KNN, Laplacian
    >>> inverse = SmoothedAggregation(coarsest=100)(
    ...     Laplacian(KNN(8)(torch.rand(400, 2))).symmetric
    ... )
    >>> inverse(torch.rand(400, 3)).shape
    torch.Size([400, 3])
    """

    coarsest: int = 400
    max_complexity: float = 3.0
    smoothing: int = 2
    single: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, coarsest=1, smoothing=1)
        complexity = checks.check_positive(self.max_complexity, "max_complexity")
        checks.set_frozen(self, max_complexity=complexity, single=checks.check_flag(self.single, "single"))

    def __call__(self, operator: Operator) -> Inverse | None:
        """Return one cycle for a Laplacian, of all nodes of a batch as one; None where coarsening stops early."""
        if (cycle := cycle_on_ranks(operator.nodes, operator, self)) is not NotImplemented:
            return cycle  # type: ignore[no-any-return]
        edges = entries_of(operator, self).affinities()
        assert isinstance(operator, SymmetricOperator)  # the only kind with affinities
        assert operator.null is not None  # else it is not made of affinities
        ground = operator.null.ground.reshape(-1, 1)
        excess = None if operator.excess is None else operator.excess.reshape(-1)
        hierarchy = self.hierarchy(*edges, ground.square()[:, 0], excess)
        if hierarchy is None:
            return None
        scale = torch.where(hierarchy.diagonal > 0, ground / hierarchy.diagonal.sqrt(), 0)
        return Multigrid(hierarchy, scale.to(ground.dtype), hierarchy.near_null)

    def hierarchy(
        self, row: Tensor, col: Tensor, weight: Tensor, mass: Tensor, excess: Tensor | None = None
    ) -> Hierarchy | None:
        """Return the hierarchy of the Laplacian of edges; None where it would end far above the coarsest size.

        Edges are in CSR order, both directions, without loops, with positive weights; ``mass`` ``(N,)`` has the squares
        of the null vector's entries. The sums over aggregates of an ``excess`` ≥ 0 on the diagonal ``(N,)`` are passed
        to the next level beside the Laplacian, whose row sums stay zero: none is too small beside the weights.
        """
        generator = torch.Generator(weight.device).manual_seed(self.seed)
        matrix, mass = _laplacian(row, col, weight.double(), len(mass)), mass.double()
        dtype = torch.float32 if self.single else torch.float64
        excess = None if excess is None else excess.double()
        matrix, diagonal = _balance(matrix, excess)
        least = LEAST_DIAGONAL * float(torch.where((mass > 0) & (diagonal > 0), diagonal / mass, 0).max())
        raised = [((diagonal > 0) & (diagonal < least * mass)).sum()]
        finest = diagonal = no_smaller(diagonal, least * mass)
        levels: list[Level] = []
        total = first = len(matrix.values())
        while matrix.shape[0] > self.coarsest:
            step = _coarsen(matrix, diagonal, excess, self.max_complexity * first - total, generator)
            if step is None:
                break
            (prolongation, restriction), coarse, below, radius, excess = step
            total += len(coarse.values())
            mass = (restriction @ mass[:, None])[:, 0]
            raised.append(((below > 0) & (below < least * mass)).sum())
            below = no_smaller(below, least * mass)
            # P and its transpose in scaled coordinates: D^½ P D_c^-½.
            root, coarse_root = diagonal.clamp_min(0).sqrt(), inverse_root(below)
            up, down = _scale(prolongation, root, coarse_root, dtype), _scale(restriction, coarse_root, root, dtype)
            levels.append(Level(_unit(matrix, diagonal, dtype), radius, up, down))
            matrix, diagonal = coarse, below
        if matrix.shape[0] > max(self.coarsest, 3000):  # too large for a dense inverse
            return None
        # The coarsest level stays in float64, in which its null space and smallest eigenvalues are distinct. Round-off
        # does not tell null vectors from clusters that faint edges join: known ones, here of value 1, are left out.
        null = _null_projector(matrix, diagonal)
        values, vectors = torch.linalg.eigh(_unit(matrix, diagonal, torch.float64).to_dense() + null)
        dtype = dtype if levels else torch.float64
        smallest = torch.finfo(dtype).eps  # beyond, faintly joined clusters have more round-off than all else
        inverse = ((vectors / values.clamp_min(smallest)) @ vectors.mT - null).to(dtype)
        near_null = int((values <= smallest).sum()) + int(torch.stack(raised).max())
        return Hierarchy(tuple(levels), inverse, finest[:, None], self.smoothing, near_null)


@singledispatch
def cycle_on_ranks(nodes: Any, operator: Any, options: SmoothedAggregation) -> Any:
    """Return one cycle for a Laplacian by the way that a pattern on several ranks registers; else NotImplemented."""
    return NotImplemented


def _coarsen(
    matrix: Tensor, diagonal: Tensor, excess: Tensor | None, room: float, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor, float, Tensor | None] | None:
    """Return P with Pᵀ, Pᵀ L P, its diagonal, the radius of D⁻¹ L, the next excess; None for hardly fewer nodes."""
    row, col = _rows(matrix), matrix.col_indices()
    size = matrix.values().abs().masked_fill_(row == col, 0)
    largest = torch.segment_reduce(size, "max", offsets=matrix.crow_indices(), initial=0, unsafe=True)
    row, col, nearest = strong_edges(row, col, size, largest)
    aggregate, count = aggregates(row, col, nearest, nearest >= 0, generator)
    if count == 0 or count > 0.8 * len(diagonal):
        return None
    radius = _radius(_unit(matrix, diagonal, torch.float64), generator)
    inside = aggregate >= 0
    crow, col = torch.nn.functional.pad(inside.cumsum(0), (1, 0)).int(), aggregate[inside].int()
    plain = csr(crow, col, torch.ones_like(col, dtype=matrix.dtype), (len(aggregate), count))
    excess = None if excess is None else sum_of_groups(excess[inside], aggregate[inside], count)
    smooth = _jacobi_step(matrix, diagonal, aggregate, radius) @ plain
    products = matrix.crow_indices().diff().double() @ smooth.crow_indices().diff().double()
    # Hubs would fill the coarse matrix: a poorer space without smoothing never has more entries than the level above.
    for prolongation in (smooth, plain) if products <= 30 * len(matrix.values()) else (plain,):
        restriction = prolongation.t().to_sparse_csr()
        coarse, coarse_diagonal = _balance(restriction @ (matrix @ prolongation), excess)
        if len(coarse.values()) <= room:
            break
    return (prolongation, restriction), coarse, coarse_diagonal, radius, excess


def strong_edges(row: Tensor, col: Tensor, size: Tensor, largest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return both ends of the edges that are strong at both, and each node's neighbour by its strongest edge or −1."""
    # An edge that is strong at one end and faint at the other would join distant parts: a node between two clusters
    # would put them in one aggregate, and the coarse levels would resolve neither. A node's strongest edge, of the size
    # `largest`, may be missing among `row` and `col`.
    nearest = torch.full_like(largest, -1, dtype=torch.int64)
    step, rows, cols = rows_of_block(8 * size.element_size(), size.device, "cache"), [], []
    for i, j, length in zip(row.split(step), col.split(step), size.split(step), strict=True):
        here, there = largest.index_select(0, i), largest.index_select(0, j)
        is_strong = (length >= 0.25 * torch.minimum(here, there)) & (length >= 0.01 * torch.maximum(here, there))
        strong = (is_strong & (length > 0)).nonzero().flatten()
        best = ((length == here) & (length > 0)).nonzero().flatten()
        nearest.scatter_reduce_(0, i[best].long(), j[best].long(), "amax")
        rows.append(i[strong])
        cols.append(j[strong])
    return torch.cat(rows).long(), torch.cat(cols).long(), nearest


def _jacobi_step(matrix: Tensor, diagonal: Tensor, aggregate: Tensor, radius: float) -> Tensor:
    """Return I − ω D⁻¹ L with ω = 4 / (3 radius); zero rows for nodes without an aggregate."""
    row, values = _rows(matrix), matrix.values()
    is_loop = row == matrix.col_indices()
    # Divide each entry by its diagonal: the inverse of a diagonal may overflow.
    own = torch.where(aggregate >= 0, diagonal, torch.inf).index_select(0, row)
    step = values / own * (-4 / (3 * radius))
    step[is_loop] += (aggregate >= 0).to(values.dtype)[row[is_loop]]
    return _with_values(matrix, step)


def _laplacian(row: Tensor, col: Tensor, weight: Tensor, n: int) -> Tensor:
    """Return D − W as CSR with its diagonal, from edges in CSR order."""
    crow, columns, entry, diagonal = with_diagonal(row, col, offsets_of_groups(row, n))
    values = weight.new_empty(len(columns)).index_copy_(0, entry, weight).neg_()
    values.index_copy_(0, diagonal, sum_of_groups(weight, row, n))
    return csr(crow, columns, values, (n, n))


def _rows(matrix: Tensor) -> Tensor:
    crow = matrix.crow_indices()
    return torch.repeat_interleave(crow.diff(), output_size=matrix.values().numel()).to(crow.dtype)


def _loops(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return which entries of a CSR matrix are on its diagonal, and their nodes."""
    loops = (_rows(matrix) == matrix.col_indices()).nonzero().flatten()
    return loops, matrix.col_indices().index_select(0, loops)


def _with_values(matrix: Tensor, values: Tensor) -> Tensor:
    crow, col = matrix.crow_indices(), matrix.col_indices()
    return csr(crow, col, values, (matrix.shape[0], matrix.shape[1]))


def _balance(matrix: Tensor, excess: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the matrix with row sums of exactly zero, and its diagonal with the excess."""
    # A Galerkin product's diagonal is what a cancellation leaves: between faintly joined clusters, and for a component
    # that has become one node, only round-off.
    loops, node = _loops(matrix)
    values = matrix.values().index_fill(0, loops, 0)
    diagonal = -sum_of_groups(values, _rows(matrix), matrix.shape[0])
    values.index_copy_(0, loops, diagonal.index_select(0, node))
    return _with_values(matrix, values), diagonal if excess is None else diagonal + excess


def no_smaller(diagonal: Tensor, least: Tensor) -> Tensor:
    """Return diagonals of at least this size where they are positive."""
    return torch.where(diagonal > 0, torch.maximum(diagonal, least), 0)


def inverse_root(diagonal: Tensor) -> Tensor:
    """Return d^-½, with 0 where d is not positive."""
    return torch.where(diagonal > 0, diagonal, torch.inf).rsqrt()


def _scale(matrix: Tensor, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return diag(left) · matrix · diag(right) with small indices, for repeated products."""
    values = left.index_select(0, _rows(matrix)).mul_(matrix.values())
    values = values.mul_(right.index_select(0, matrix.col_indices())).to(dtype)
    is_small = max(len(values), *matrix.shape) < 2**31
    crow, col = (part.int() if is_small else part for part in (matrix.crow_indices(), matrix.col_indices()))
    return csr(crow, col, values, (matrix.shape[0], matrix.shape[1]))


def _unit(matrix: Tensor, diagonal: Tensor, dtype: torch.dtype) -> Tensor:
    """Return D^-½ · matrix · D^-½ with unit diagonal: D is the matrix's diagonal with the excess."""
    root = inverse_root(diagonal)
    unit, (loops, node) = _scale(matrix, root, root, dtype), _loops(matrix)
    unit.values().index_copy_(0, loops, (diagonal > 0).to(dtype).index_select(0, node))
    return unit


def _null_projector(matrix: Tensor, diagonal: Tensor) -> Tensor:
    """Return the projector on the null vectors of `_unit`: D^½ 1 on each component with neither excess nor raised D."""
    n, (loops, node) = matrix.shape[0], _loops(matrix)
    edges = (matrix.values() != 0).nonzero().flatten()
    label = label_components(_rows(matrix)[edges], matrix.col_indices()[edges], n)
    extra = diagonal - torch.zeros_like(diagonal).index_copy(0, node.long(), matrix.values()[loops])
    volume, extra = (sum_of_groups(part, label, n).index_select(0, label) for part in (diagonal, extra))
    root = torch.where(volume > 0, diagonal / volume, 1).sqrt() * (extra == 0)
    return torch.where(label[:, None] == label, root[:, None] * root, 0)


def _radius(matrix: Tensor, generator: torch.Generator, products: int = 15) -> float:
    """Return an estimate from above of the largest eigenvalue of a Laplacian of unit diagonal, at most its bound 2."""
    x = torch.randn(matrix.shape[0], 1, dtype=matrix.dtype, device=matrix.device, generator=generator)
    x, before, beta = x / x.norm(), torch.zeros_like(x), x.new_zeros(())
    alphas, betas = [], []
    for _ in range(products):
        image = (matrix @ x).addcmul_(before, beta, value=-1)
        alphas.append((x * image).sum())
        image = image.addcmul_(x, alphas[-1], value=-1)
        betas.append(beta := image.norm())
        x, before = image / beta.clamp_min(torch.finfo(x.dtype).tiny), x
    off = torch.diag(torch.stack(betas[:-1]), 1)
    values, vectors = torch.linalg.eigh(torch.diag(torch.stack(alphas)) + off + off.mT)
    # The residual covers an eigenvector on a few nodes, which the power method would miss: the smoother would enlarge
    # such errors instead of damping them.
    return min(float(values[-1] + betas[-1] * vectors[-1, -1].abs()), 2.0)


def aggregates(
    row: Tensor, col: Tensor, nearest: Tensor, alive: Tensor, generator: torch.Generator
) -> tuple[Tensor, int]:
    """Return the aggregate of each node by strong edges, −1 for nodes that are not ``alive``, and their number."""
    # The roots of the aggregates are a maximal set of nodes more than two edges apart: each round adds the nodes with
    # the largest random number within two edges (Luby 1986). The other nodes join an adjacent root, or else the root of
    # a neighbour. Nodes without strong edges join the aggregate of their nearest neighbour.
    n = len(nearest)
    priority = (1 + torch.randperm(n, generator=generator, device=row.device)).to(torch.int32)
    loose = (nearest >= 0).index_fill_(0, row, False)
    undecided, root = alive & ~loose, torch.zeros_like(alive)

    def largest(x: Tensor) -> Tensor:  # over a node and its neighbours
        return x.scatter_reduce(0, row, x.index_select(0, col), "amax")

    while undecided.any():
        own = torch.where(undecided, priority, 0)
        new = undecided & (largest(largest(own)) == priority)
        root |= new
        undecided &= largest(largest(new.to(torch.int8))) == 0
    count = int(root.sum())
    number = torch.full((n,), -1, dtype=torch.int32, device=row.device)
    number[root] = torch.arange(count, dtype=torch.int32, device=row.device)
    for _ in range(2):
        number = torch.where(number < 0, largest(number), number)
    if loose.any():  # follow ever stronger edges to a node with a strong edge
        nearest = torch.where(loose, nearest, torch.arange(n, device=row.device))
        while not torch.equal(following := nearest[nearest], nearest):
            nearest = following
        number = number[nearest]
    return number.long(), count
