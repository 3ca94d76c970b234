"""Symmetric matrices of values on the edges of a graph, with gradients to the values, and their null vectors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial

import torch
from torch import Tensor

from torch_lapeig.eigen.function import UNSET, ends_of_spectrum
from torch_lapeig.eigen.operator import Operator, name_of
from torch_lapeig.graph.algebra import sum_of_groups
from torch_lapeig.graph.graph import check_edge_values
from torch_lapeig.graph.pattern import Part, Pattern, SparsePattern, in_double
from torch_lapeig.native.calls import Rows, memory_supported
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import cached_property, check_unchanged, make_usable
from torch_lapeig.support.threads import slices
from torch_lapeig.support.tuning import PART_OF_BLOCK

SMALL_NODES = 256  # up to which Frobenius's bound is faster than the ten products of a close one


@dataclass(frozen=True, eq=False)
class NullSpace:
    """Null vectors in closed form: one on each part of the active nodes, in proportion to ``ground``.

    A Laplacian has one part for each connected component.

    Attributes:
        ground: ``(B, N)``, float32 or float64, positive on active nodes and zero on the others; without gradients.
        part: int64 ``(B, N)``, the part of each active node, counted from 0 in each graph.
        counts: int64 ``(B,)``, the number of parts of each graph.

    >>> # two parts of three nodes
    >>> null = NullSpace(torch.ones(1, 3), torch.tensor([[0, 0, 1]]), torch.tensor([2]))
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

    def check(self, nodes: tuple[int, int]) -> None:
        """Raise unless tensors have these sizes ``(B, N)``, and parts are counted from 0."""
        checks.check_floating(self.ground, "ground")
        checks.check_indices(self.counts, "counts", nodes[1] + 1)
        checks.check_indices(self.part, "part", max(int(self.counts.max()), 1) if self.counts.numel() else 0)
        shapes = tuple(tuple(part.shape) for part in (self.ground, self.part, self.counts))
        if shapes != (nodes, nodes, nodes[:1]):
            raise ValueError(f"null must have ground and part of shape {nodes} and counts {nodes[:1]}, got {shapes}")

    def part_of(self, graphs: slice, nodes: Tensor | slice = slice(None)) -> NullSpace:
        """Return the null space of some graphs of the batch, with some nodes in an order."""
        return NullSpace(self.ground[graphs, nodes], self.part[graphs, nodes], self.counts[graphs])

    def vectors(self, m: int, most: int, total: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the first ``m`` vectors of an orthonormal basis, ``(B, N, m)``, zeros beyond the last one.

        A Householder reflection turns the vectors of the parts, of which there are ``most`` or fewer, so that the first
        vector belongs to the whole graph. ``total`` sums over the ranks where nodes lie.
        """
        if m == 1:  # the null vector of the whole graph
            length = total(self.ground.square().sum(1, keepdim=True)).sqrt()
            return (self.ground / torch.where(length > 0, length, 1))[..., None]
        size = self.ground.square()
        place = self.part + most * torch.arange(len(size), device=size.device)[:, None]
        volume = total(sum_of_groups(size.flatten(), place.flatten(), len(size) * most).reshape(-1, most))
        # −H = 2 w wᵀ / wᵀw − I with w = e_1 + s maps e_1 to s, the roots of the parts' shares of the volume.
        whole = volume.sum(1, keepdim=True)
        root = (volume / torch.where(whole > 0, whole, 1)).sqrt()
        w = torch.cat([root[:, :1] + 1, root[:, 1:]], 1)
        number = torch.arange(m, device=size.device)
        at_node = (self.part[..., None] == number).to(w.dtype)
        scale = 2 / w.square().sum(1)
        turn = scale[:, None, None] * w.gather(1, self.part)[..., None] * w[:, None, :m] - at_node
        # Equal, but where the first part is tiny its digits would cancel.
        turn[..., :1] = root.gather(1, self.part)[..., None]
        unit = (size / volume.gather(1, self.part)).sqrt()
        basis = torch.where(self.ground > 0, unit, 0)[..., None] * turn
        return basis.masked_fill((number >= self.counts[:, None])[:, None, :], 0)


@dataclass(frozen=True, eq=False)
class SymmetricOperator(Operator):
    """Operator A = diag(c) − M, positive semidefinite, for a symmetric M on the edges of a graph, such as a kernel.

    `eigenpairs` accepts it in place of a `Laplacian`; gradients flow to M and c. Its eigenvectors are orthonormal.

    Args:
        pattern: the positions of the entries of M, sparse or dense, for one matrix or a batch.
        values: M on the edges, of any sign, float32 or float64; gradients flow to it. Where the two directions of an
            edge differ by round-off, it is their mean.
        diagonal: c, of the pattern's shape; gradients flow to it. Like all parts it takes the dtype of the values.
        bound: upper bound of the spectrum of each graph, ``(B,)``; default: Gershgorin's.
        null: known null vectors, which need not be solved for; None for none.
        active: bool ``(B, N)``, nodes that take part; default: all. The others have zero rows.
        of_affinities: whether N A N is D − W for affinities W ≥ 0 and N = diag(``null.ground``), as
            multigrid needs.
        trusted: whether to skip the checks below.
        excess: e ≥ 0, ``(B, N)``, if N A N is D − W + diag(e), so that ``ground`` is no null vector; None for 0.
        given: dtype to which the entries were rounded; default: their own.
        constant_null: short for ``null=NullSpace.constant(diagonal)``: A 1 = 0.

    Raises: ValueError: values that are not symmetric, a bound below an entry of the diagonal.

    >>> from torch_lapeig import eigenpairs
    >>> from torch_lapeig.graph import DensePattern
    >>> m = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> operator = SymmetricOperator(DensePattern((2,)), m, torch.tensor([2.0, 2.0]))
    >>> eigenpairs(operator, 1).values, eigenpairs(operator, 1, largest=True).values
    (tensor([1.]), tensor([3.]))
    """

    pattern: Pattern
    values: Tensor
    diagonal: Tensor
    bound: Tensor = UNSET
    null: NullSpace | None = None
    active: Tensor = UNSET
    of_affinities: bool = False
    trusted: bool = False
    excess: Tensor | None = None
    given: torch.dtype | None = None
    constant_null: InitVar[bool] = False
    shape: tuple[int, ...] = field(init=False, repr=False, default=())
    dtype: torch.dtype = field(init=False, repr=False, default=torch.float64)
    device: torch.device = field(init=False, repr=False, default=torch.device("cpu"))
    definite: bool = field(init=False, repr=False, default=True)  # whether no eigenvalue is negative
    size: Tensor | None = field(init=False, repr=False, default=None)  # `Operator.scale`; None for the bound
    mass: SymmetricOperator | None = field(init=False, repr=False, default=None)  # M of one graph

    def __post_init__(self, constant_null: bool) -> None:
        if not self.trusted:
            check_edge_values(self.pattern, self.values, "values")
        shape, nodes = self.pattern.shape, self.pattern
        sizes = {"batch_size": math.prod(shape[:-1]), "num_nodes": shape[-1], "all_nodes": nodes.number_of(shape[-1])}
        facts = {"shape": shape, "dtype": self.values.dtype, "device": self.values.device}
        checks.set_frozen(self, nodes=nodes, **facts, **sizes)
        if not self.trusted:
            self._check_parts(constant_null)
        if constant_null:
            checks.set_frozen(self, null=NullSpace.constant(self.diagonal))
        if self.bound is UNSET:
            rows = checks.primal(self.diagonal).abs() + self.pattern.sum_rows(checks.primal(self.values).abs())
            checks.set_frozen(self, bound=self.pattern.largest(rows.reshape(self.batch_size, -1, 1))[:, 0])
        if self.active is UNSET:
            checks.set_frozen(self, active=super().active)
        if self.values.is_inference() or torch.is_inference_mode_enabled():
            make_usable(self)
        if not self.trusted:
            check_unchanged(self, "values or diagonal have", self.values, self.diagonal)

    def _check_parts(self, constant_null: bool) -> None:
        if self.batch_size * self.all_nodes == 0:
            raise ValueError(f"pattern must be of at least one graph with a node, got shape {self.shape}")
        checks.check_floating(self.diagonal, "diagonal")
        if tuple(self.diagonal.shape) != tuple(self.shape):
            raise ValueError(f"diagonal must have shape {tuple(self.shape)}, got {tuple(self.diagonal.shape)}")
        checks.set_frozen(self, diagonal=self.diagonal.to(self.dtype))
        nodes = (self.batch_size, self.num_nodes)
        if self.active is not UNSET:
            checks.check_mask(self.active, self.values.new_empty(*nodes, 0), "active")
        if self.null is not None:
            self.null.check(nodes)
            checks.set_frozen(self, null=dataclasses.replace(self.null, ground=self.null.ground.to(self.dtype)))
        checks.check_symmetric_matrix(self.values, back := self.pattern.transpose(self.values), "values", self.pattern)
        if not torch.equal(self.values, back):  # by round-off, which may leave zeros on one side only
            given, back = checks.primal(self.values), checks.primal(back)
            checks.set_frozen(self, values=self.values + (back - given) / 2)
        checks.check_flag(constant_null, "constant_null")
        if self.bound is not UNSET:
            checks.check_floating(self.bound, "bound")
            if tuple(self.bound.shape) != (self.batch_size,):
                raise ValueError(f"bound must have shape {(self.batch_size,)}, got {tuple(self.bound.shape)}")
            largest = self.pattern.largest(checks.primal(self.diagonal).reshape(self.batch_size, -1, 1))[:, 0]
            if (largest.isfinite() & ~(self.bound.isfinite() & (self.bound >= largest))).any():
                raise ValueError(
                    f"bound must be finite and no less than the diagonal's entries, of up to {largest.tolist()}, got "
                    f"{self.bound.tolist()}; leave it out for Gershgorin's"
                )
            checks.set_frozen(self, bound=self.bound.to(self.dtype))

    def check(self) -> None:
        """Raise ValueError unless all entries are finite."""
        check_unchanged(self, "values or diagonal have", self.values, self.diagonal)
        for part in self.parameters:
            checks.check_finite(part, "operator")

    @property
    def is_sparse(self) -> bool:
        """Return whether M is stored as a list of edges."""
        return isinstance(self.pattern, SparsePattern)

    @cached_property
    def _numbers(self) -> list[int]:
        """Return fewest active nodes, most null vectors, longest row, unit diagonal, odd unit: one synchronisation."""
        longest = self.nullity.new_zeros(())
        if isinstance(self.pattern, SparsePattern) and self.num_nodes > 0:  # a rank may have no nodes
            longest = self.pattern.crow.diff().max().to(longest)
        longest = self.pattern.maximum(longest)
        is_odd, is_unit = ~checks.are_near_one(checks.next_power(self.bound)).all(), (self.diagonal == 1).all()
        return precision.synchronise(self.active_count.min(), self.nullity.max(), longest, is_unit, is_odd)

    @property
    def is_near_one(self) -> bool:
        """Return whether the normal form is A itself; see `Operator.is_near_one`."""
        return self.definite and (self.batch_size == 0 or not self._numbers[4])

    @torch.no_grad()
    def ends(self, *, close: bool = True) -> tuple[Tensor, Tensor]:
        """Return bounds of the spectrum: Gershgorin's, Frobenius's, or those of Lanczos if closer."""
        if self.definite:
            return super().ends()
        values, diagonal = checks.primal(self.values), checks.primal(self.diagonal)
        others = self.pattern.without_loops(values)
        centre = (diagonal - self.pattern.sum_loops(values)).reshape(self.batch_size, -1)
        radius = self.pattern.sum_rows(others.abs()).reshape(centre.shape)
        least, most = (centre - radius).amin(1), (centre + radius).amax(1)
        unit = checks.next_power(size := torch.maximum(least.abs(), most.abs()))  # squares do not overflow in it
        squares = self.pattern.sum_rows((others / self.pattern.of_graph(unit)).square()).reshape(centre.shape)
        squares = squares + (centre / unit[:, None]).square()
        lower, upper = (sign * unit * squares.sum(1).sqrt() for sign in (-1, 1))
        # No column is longer than the largest product.
        if self.num_nodes > SMALL_NODES and (close or (size > 2 * unit * squares.amax(1).sqrt()).any()):
            lower, _, _, upper = ends_of_spectrum(self.frozen(), 0, unit[:, None, None])
        return torch.maximum(least, lower), torch.minimum(most, upper)

    def scaled(self, factor: Tensor) -> SymmetricOperator:
        """Return S A S for S = diag(``factor``), positive and of the operator's shape, with gradients to the factor."""
        s, null, pattern = checks.primal(factor), self.null, self.pattern
        ground = torch.ones_like(s)
        if null is not None:
            ground = torch.where(null.ground > 0, null.ground, 1).reshape(self.shape)
            null = dataclasses.replace(null, ground=null.ground / s.reshape(null.ground.shape))
        # Gershgorin's bound of S² A, in the units in which a null vector is constant.
        others = pattern.at_col(ground) * checks.primal(self.values).abs()
        rows = (checks.primal(self.diagonal).abs() + pattern.sum_rows(others) / ground) * s.square()
        largest = pattern.largest(torch.stack([rows, s.square()], -1).reshape(self.batch_size, -1, 2))
        bound = torch.minimum(largest[:, 0], self.bound * largest[:, 1])
        values, diagonal = pattern.scaled(self.values, factor), self.diagonal * factor.square()
        return self._with(values=values, diagonal=diagonal, bound=bound, null=null)

    def clamped(self, fixed: Tensor) -> SymmetricOperator:
        """Return the operator on the other nodes than ``fixed``, bool of the operator's shape, which take no part."""
        pattern, free = self.pattern, ~fixed
        keep, null, excess = pattern.at_row(free) & pattern.at_col(free), None, None
        reaches_all = self.excess is not None  # where no null vector is left
        if self.null is not None and not reaches_all:
            there, part = fixed.reshape(self.active.shape).to(self.dtype), self.null.part
            there = torch.zeros_like(there).scatter_reduce(1, part, there, "amax").gather(1, part)
            reaches_all = bool((there > 0).all())
        if self.of_affinities and self.null is not None and reaches_all:  # their edges only count on the diagonal
            ground = self.null.ground * free.reshape(self.active.shape)
            lost = pattern.scaled(checks.primal(self.values), self.null.ground.reshape(self.shape)).masked_fill(keep, 0)
            excess = pattern.sum_rows(lost).reshape(ground.shape) + (0 if self.excess is None else self.excess)
            excess = excess.masked_fill(ground == 0, 0)
            null = NullSpace(ground, torch.zeros_like(self.null.part), torch.zeros_like(self.null.counts))
        values, diagonal = torch.where(keep, self.values, 0), torch.where(free, self.diagonal, 0)
        active, is_left = self.active & free.reshape(self.active.shape), null is not None
        kind = {"null": null, "excess": excess, "active": active, "of_affinities": is_left}
        return self._with(values=values, diagonal=diagonal, **kind)

    @cached_property
    def nullity(self) -> Tensor:
        """Return the number of known null vectors, int64 ``(B,)``."""
        return super().nullity if self.null is None else self.null.counts

    def null_vectors(self, m: int) -> Tensor:
        """Return the first ``m`` of an orthonormal basis of the known null vectors, ``(B, N, m)``; zeros beyond."""
        if self.null is None:
            return super().null_vectors(m)
        return self.null.vectors(m, max(self.most_null, m, 1), self.nodes.sum)

    @cached_property
    def round_off(self) -> Tensor:
        """Return the residual of rounding; see `Operator.round_off`."""
        # Dense products sum in blocks: with entries of two values on 2000 nodes a null vector has 51 units, and 95 on a
        # processor whose blocks are longer.
        longest = self._numbers[2] if self.is_sparse else self.num_nodes / 2.5
        factor: float = max(40.0, 0.3 * self.all_nodes**0.5, 4.0 * longest**0.5)
        return self.scale * (factor * torch.finfo(self.dtype).eps)

    @property
    def mean_value(self) -> Tensor | None:  # type: ignore[override]
        """Return the mean of the diagonal, ``(B,)``, which is the mean eigenvalue if there are no loops."""
        diagonal = self.diagonal.detach().reshape(self.active.shape)
        return self.nodes.sum((diagonal * self.active).sum(1)) / self.active_count.clamp_min(1)

    @property
    def parameters(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return M on the edges and c."""
        return self.values, self.diagonal

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return A Y for M on the edges and c; see `Operator.matmul_at`."""
        edges, diagonal = parameters
        return diagonal.reshape(*y.shape[:-1], 1) * y - self.pattern.matmul(edges, y, stays_symmetric=True)

    def gradients(
        self, x: Tensor, y: Tensor, to_mass: Tensor | None, needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Return −(y_i · x_j + x_i · y_j) / 2 on the edges, and y_i · x_i; see `Operator.gradients`."""
        values = self.pattern.products(torch.cat([y, x], -1), torch.cat([x, y], -1)) / -2 if needed[0] else None
        diagonal = (y * x).sum(-1).reshape(self.shape) if needed[1] else None
        if self.mass is None or to_mass is None:
            return values, diagonal
        return values, diagonal, *self.mass.gradients(x, to_mass, None, needed[2:])

    def frozen(self) -> SymmetricOperator:
        """Return this operator without the tangents of forward mode, which ``detach`` keeps."""
        found: SymmetricOperator = super().frozen()
        if not checks.is_dual(self.values, self.diagonal):
            return found
        return found._with(values=checks.primal(self.values), diagonal=checks.primal(self.diagonal))

    def double(self) -> SymmetricOperator:
        """Return this operator in float64, with gradients."""
        if self.dtype == torch.float64:
            return self
        null = None if self.null is None else dataclasses.replace(self.null, ground=self.null.ground.double())
        values, diagonal, bound = in_double(self.pattern, self.values), self.diagonal.double(), self.bound.double()
        if null is not None and self.excess is None and bool((null.ground == self.active).all()):
            # Where A 1 = 0, rounded entries of the diagonal leave an error that the exact sums of rows do not have.
            exact = self.pattern.sum_rows(checks.primal(values))
            diagonal = diagonal + (exact - checks.primal(diagonal))
        excess, given = None if self.excess is None else self.excess.double(), self.given or self.dtype
        return self._with(values=values, diagonal=diagonal, bound=bound, null=null, excess=excess, given=given)

    def items(self) -> Iterator[SymmetricOperator]:
        """Yield the operator of each graph of a batch."""
        if len(self.shape) == 1:
            yield self
            return
        for b in range(self.batch_size):
            yield self._restricted(self.pattern.part_of(b), slice(b, b + 1))

    def part(self, graphs: slice) -> SymmetricOperator:
        """Return the operator of some graphs of a batch, one after the other."""
        return self._restricted(self.pattern.part_of(graphs), graphs)

    def parts(self, columns: int) -> list[slice]:
        """Return slices of the batch; one on other devices, and where parts would be so small that Python dominates."""
        if self.batch_size == 1 or self.device.type != "cpu":
            return [slice(0, self.batch_size)]
        return slices(self.batch_size, PART_OF_BLOCK / max(self.num_nodes * columns, 1))

    def _restricted(self, part: Part, graphs: slice, nodes: Tensor | slice = slice(None)) -> SymmetricOperator:
        """Return the operator on a part of the pattern: of some graphs of the batch, with some nodes in an order."""
        pattern, edges = part
        diagonal = self.diagonal.reshape(self.active.shape)[graphs, nodes].reshape(pattern.shape)
        size, null = None if self.size is None else self.size[graphs], self.null and self.null.part_of(graphs, nodes)
        excess = None if self.excess is None else self.excess[graphs, nodes]
        at = {"bound": self.bound[graphs], "size": size, "active": self.active[graphs, nodes], "excess": excess}
        return self._with(pattern=pattern, values=self.values[edges], diagonal=diagonal, null=null, **at)

    def reordered(self, order: Tensor | None = None) -> tuple[SymmetricOperator, Tensor]:
        """Return an operator with its nodes in an order, int64 ``(N,)``, and the order: reverse Cuthill–McKee if None.

        Products of large graphs are faster when neighbours are close in memory. Gradients flow through.
        """
        if not isinstance(self.pattern, SparsePattern) or len(self.shape) > 1:
            raise ValueError(f"only one sparse graph can be reordered, got shape {self.shape}")
        places = self.pattern.bandwidth_reducing_order() if order is None else order
        return self._restricted(self.pattern.restrict(places), slice(None), places), places

    def _with(self, **changes: object) -> SymmetricOperator:
        """Return a copy with other fields, without checks: fields derived from a checked operator are sound."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(SymmetricOperator)}
        found = object.__new__(SymmetricOperator)
        vars(found).update(fields | changes | {"trusted": True})
        found.__post_init__(False)
        return found

    @precision.full_precision
    def matmul(self, y: Tensor) -> Tensor:
        """Return the product with ``y`` ``(B, N, m)``, or ``(N, m)`` of one graph, in O(E·m); differentiable in both.

        Half precision is computed in the precision of the entries, and the result has the dtype of ``y``.
        """
        if tuple(y.shape[:-1]) not in (tuple(self.shape), (self.batch_size, self.num_nodes)):
            raise ValueError(f"y must have shape {(*self.shape, 'm')}, got {tuple(y.shape)}")
        if y.dtype in checks.HALVES:
            return self.matmul(y.to(self.dtype)).to(y.dtype)
        if torch.is_grad_enabled():
            return self.matmul_at(self.parameters, y)
        # A dense product takes longer than one with a diagonal, and a given diagonal may change in place.
        is_unit = self.is_sparse and self.trusted and self._numbers[3]
        plus = y if is_unit else self.diagonal.detach().reshape(*y.shape[:-1], 1) * y
        return self.pattern.multiply(self._couplings, y, plus, times=-1)

    @cached_property
    def _couplings(self) -> Tensor:
        """Return M as a matrix without gradients: CSR over all nodes of a batch if the graph is sparse, else dense."""
        return self.pattern.to_matrix(self.values)

    @cached_property
    def compiled(self) -> Rows | None:  # type: ignore[override]
        """Return compiled rows; see `Operator.compiled`."""
        if type(self.pattern) is not SparsePattern:  # shards have a halo
            return None
        diagonal = None if self._numbers[3] else self.diagonal.reshape(-1)
        return Rows.of(self.pattern.crow, self.pattern.col, self.values, diagonal)

    @property
    def dense(self) -> dict[str, Tensor] | None:  # type: ignore[override]
        """Return M and c as C reads them; see `Operator.dense`."""
        parts = {"matrix": self.values.detach(), "diagonal": self.diagonal.detach().contiguous()}
        is_one = len(self.shape) == 1 and not self.is_sparse and self.dtype == torch.float64
        return parts if is_one and self.values.is_contiguous() and memory_supported(*parts.values()) else None

    def twice(self, centre: Tensor, half: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Return the function by a matrix 2 Ã; see `Operator.twice`."""
        diagonal = (self.diagonal.detach().reshape(self.active.shape) - centre[:, None]) / half[:, None]
        matrix = self.pattern.assemble(2 * diagonal, self.values.detach() * self.pattern.of_graph(-2 / half))
        # In place on the processor, where allocating takes as long as a product; devices keep memory for reuse.
        return partial(self.pattern.multiply, matrix, plus=-1, in_place=self.device.type == "cpu")

    def to_matrix(self) -> Tensor:
        """Return the matrix without gradients: CSR over all nodes of a batch if the graph is sparse, else dense."""
        return self.pattern.assemble(self.diagonal, -self.values.detach())

    def to_dense(self) -> Tensor:
        """Return the matrix ``(N, N)`` or ``(B, N, N)``, with gradients."""
        dense = 0 - self.pattern.to_dense(self.values)  # without negative zeros
        return torch.diagonal_scatter(dense, dense.diagonal(dim1=-2, dim2=-1) + self.diagonal, dim1=-2, dim2=-1)

    def affinities(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return row, column and positive affinity of the edges in CSR order, without loops: N A N = D − W.

        The nodes of a sparse batch are numbered as those of its pattern.
        """
        if not self.of_affinities or self.null is None:
            raise TypeError(
                "operator must be a Laplacian for multigrid, got a matrix of another kind; use "
                "Lobpcg(preconditioner=SparseFactors())"
            )
        pattern = self.pattern
        affinity = pattern.scaled(self.values.detach(), self.null.ground.reshape(self.shape))
        at = (pattern.without_loops(affinity) > 0).nonzero(as_tuple=True)
        if isinstance(pattern, SparsePattern):
            return pattern.row[at], pattern.col[at], affinity[at]
        return at[0].int(), at[1].int(), affinity[at]


def entries_of(operator: Operator, needed_by: object) -> SymmetricOperator:
    """Return the operator if it has entries; else raise TypeError, which names ``needed_by``."""
    if not isinstance(operator, SymmetricOperator):
        raise TypeError(
            f"{needed_by} needs the entries of the matrix, got a {name_of(operator)}, which has products only; "
            "use Krylov() or ChebyshevSubspace()"
        )
    if operator.nodes.is_sharded:
        raise TypeError(
            f"{needed_by} needs a matrix on one rank, got several ranks; use Lobpcg() or ChebyshevSubspace()"
        )
    return operator
