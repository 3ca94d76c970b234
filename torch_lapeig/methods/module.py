"""The contract of the embedding methods: points to columns, kept fits, and new points, with gradients."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from torch_lapeig.eigen import Eigenpairs, Solve, Solver
from torch_lapeig.graph import Graph, Precomputed
from torch_lapeig.graph.distances import check_all_stored
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import deep_copy
from torch_lapeig.support.fitted import FittedModule, State, check_like, in_blocks
from torch_lapeig.support.kinds import refuse
from torch_lapeig.support.progress import searches_reported

Own = TypeVar("Own", bound="EmbeddingModule")

Fits = Iterator[tuple[State, Tensor | None]]  # of sets of points, with the positions of these; None for all positions
NOT_PART_OF_A_FIT = ("solve", "seed", "n_init", "random_signs")  # arguments that a saved fit does not depend on
ADDED = {"max_components": 10, "min_clusters": 2}  # later than 0.3.0: a fit without them has these values


class Embedding(NamedTuple):
    """Embedding with its eigenvalues and the quality of the answer.

    Attributes:
        embedding: ``(N, n_components)`` or ``(B, N, n_components)``, of the dtype of the points, with gradients.
        eigenvalues: of the columns, ``(n_components,)`` or ``(B, n_components)``, with gradients. Laplacians and LLE:
            ascending, +∞ for a column that an item of a batch lacks. Kernels: descending, 0 for a lacking column.
        residuals: of the eigenpairs of the columns, of the shape of ``eigenvalues``.
        gap: distance of the last eigenvalue to the next one, ``()`` or ``(B,)``; +∞ if there is no next one.
        pairs: the results of `eigenpairs`, one for each eigenproblem, or batch of components of similar sizes.

    With ``components="separate"`` (`LaplacianEigenmaps`) eigenvalues, residuals and gap belong to the component of each
    node: ``(..., N, n_components)`` and ``(..., N)``.

    >>> from torch_lapeig import KNN, LaplacianEigenmaps
    >>> found = LaplacianEigenmaps(2, KNN(9)).embed(torch.rand(50, 3))
    >>> found.embedding.shape, found.eigenvalues.shape, bool(found.residuals.max() < 1e-4)
    (torch.Size([50, 2]), torch.Size([2]), True)
    """

    embedding: Tensor
    eigenvalues: Tensor
    residuals: Tensor
    gap: Tensor
    pairs: tuple[Eigenpairs, ...]


def check_solve(solve: Any) -> Solve | Solver | None:
    """Return ``solve``; raise TypeError unless it is None, a `Solve`, or a callable solver."""
    if solve is not None and not isinstance(solve, Solve):
        checks.check_function(solve, "solve", "a Solve, or a solver such as Eigh()")
    return solve  # type: ignore[no-any-return]


class PointsModule(FittedModule):
    """Steps that methods share; ``FITTED`` begins with the name of a tensor with one row for each point."""

    @property
    def pairs_given(self) -> str | None:
        """Return the kind of matrix ``(N, N)`` that the module accepts in place of points; None for points."""
        for option in vars(self).values():
            for one in (option, getattr(option, "metric", None)):
                if isinstance(one, Precomputed):
                    return one.kind
        return None

    @property
    def _steps(self) -> Any:
        """Return the object with the hooks from points to rows: the module, unless its rule brings its own."""
        return self

    @precision.full_precision
    def transform(self, x_new: Tensor) -> Tensor:
        """Return embeddings or scores ``(Q, k)`` of new points ``(Q, D)`` by the fit, with gradients to the new points.

        A training point gets its training row. For a module of pairs, ``x_new`` holds the pairs of new and training
        points, ``(Q, N)``. The result has the dtype of ``x_new``; memory is bounded.
        """
        self.check_fitted()
        state = {name: checks.half_to_float32(value) for name, value in self._fitted().items()}
        return like_given(self._extend_in_blocks(match_dtype(x_new, state[self.FITTED[0]]), state), x_new)

    def configuration(self) -> dict[str, Any]:
        """Return the constructor's arguments that a fit depends on: all but solvers, seeds and signs."""
        names = (name for name in inspect.signature(type(self)).parameters if name not in NOT_PART_OF_A_FIT)
        values = {name: getattr(self, name) for name in names if getattr(self, name) is not ADDED.get(name, ADDED)}
        return {"class": type(self).__name__, **values}

    def _reported(self) -> AbstractContextManager[None]:
        """Return a context whose searches for neighbours report their progress, where it is asked for."""
        progress = isinstance(self.solve, Solve) and self.solve.progress
        return searches_reported(progress) if progress else nullcontext()

    def _checked(self, x: Any, mask: Tensor | None) -> tuple[Any, Tensor | None]:
        """Return points or the graph of given affinities, and the mask or None, once they are checked."""
        checks.check_outside_func(x, "x")
        pairs, entries = self.pairs_given, x
        if pairs == "distance":
            check_all_stored(x)
        if pairs is not None:
            checks.check_floating(x, "x")
            if x.ndim not in (2, 3) or x.shape[-1] != x.shape[-2]:
                got = f"{tuple(x.shape)} with Precomputed({pairs!r})"
                raise ValueError(f"x must have shape (N, N) or (B, N, N), got {got}")
            if mask is not None:
                checks.check_mask(mask, x)
                entries = torch.where(mask[..., None, :], x, 0)
        checks.check_points(entries, mask=mask)
        return x, mask

    def _checked_one(self, x: Any) -> tuple[Any, Tensor | None]:
        """Return one set of points, or its graph with its mask, once it is checked; raise ValueError for a batch."""
        points, mask = self._checked(checks.half_to_float32(x), None)
        if len(shape := shape_of(points)) > 1:
            given = f"(N, {'N' if self.pairs_given else 'D'})"
            got = f"a batch of shape {tuple(getattr(x, 'shape', shape))}"
            advice = "fit the sets one by one, each in a separate module, or call out_of_sample, which takes batches"
            raise ValueError(f"fit takes one set of points {given}, got {got}; {advice}")
        return points, mask

    def _items(self, x: Any, mask: Tensor | None) -> Iterator[tuple[Any, Tensor | None]]:
        """Yield each set of points without padding, and the positions of its points; None for all positions."""
        shape = shape_of(x)
        if len(shape) == 1 and mask is None:
            yield x, None
            return
        n, values = shape[-1], x.weight if isinstance(x, Graph) else x
        valid = torch.ones(shape, dtype=torch.bool, device=values.device) if mask is None else mask
        for b, is_point in enumerate(valid.reshape(math.prod(shape[:-1]), n)):
            places = is_point.nonzero().flatten()
            if isinstance(x, Graph):
                yield x.subgraph(places + b * n) if len(places) else values.new_zeros(0, 1), places
            else:
                item = x.reshape(-1, *x.shape[-2:])[b][places]
                yield item if self.pairs_given is None else item[:, places], places

    def _with_new(self, x: Any, points: Any, x_new: Any, fits: Fits) -> tuple[Tensor, Tensor]:
        """Return the rows of points ``x``, given the fit of each item, and the rows of the new points of each item."""
        shape = shape_of(points)
        checks.check_tensor(x_new, "x_new")
        of_pairs = self.pairs_given is None or x_new.shape[-1:] == shape[-1:]
        if x_new.ndim < 2 or x_new.shape[:-2] != shape[:-1] or not of_pairs:
            expected = ", ".join(map(str, (*shape[:-1], "Q", "D" if self.pairs_given is None else shape[-1])))
            raise ValueError(f"x_new must have shape ({expected}) to go with the points, got {tuple(x_new.shape)}")
        news = iter(x_new.reshape(-1, *x_new.shape[-2:]))
        rows, rows_new = [], []
        for state, places in fits:
            known = state[self.FITTED[0]]
            rows.append(_scatter_rows(places, known, shape[-1]))
            new = match_dtype(next(news), known)
            new = new if places is None or self.pairs_given is None else new[:, places]
            if len(known) < 2:  # an item without a graph has no neighbours for new points
                rows_new.append(new.flatten()[:0].sum().expand(len(new), known.shape[1]))
            else:
                rows_new.append(self._extend_in_blocks(new, state))
        y, y_new = (torch.stack(parts) if shape[:-1] else parts[0] for parts in (rows, rows_new))
        return like_given(y, x), like_given(y_new, x_new)

    def _extend_in_blocks(self, x: Tensor, state: State) -> Tensor:
        refuse("transform", neighbors=getattr(self, "neighbors", None))
        rows, points = state[self.FITTED[0]], state.get("train_points")
        check_like(x, rows.new_empty(1, len(rows)) if points is None else points)
        return in_blocks(lambda block: self._steps._extend(block, state), x, self._steps._width(state))

    @abstractmethod
    def _extend(self, x: Tensor, state: State) -> Tensor:
        """Return the rows of a block of new points."""

    @abstractmethod
    def _width(self, state: State) -> int:
        """Return the memory that a new point needs, in numbers."""


Embedding.__deepcopy__ = deep_copy  # type: ignore[attr-defined]


class EmbeddingModule(PointsModule):
    """Contract of the embedding methods.

    ``forward`` and ``embed`` take points ``(N, D)`` or a batch ``(B, N, D)`` with a mask of valid points, ``fit`` one
    set of points, and ``out_of_sample`` a set or a batch with new points of each. Gradients flow to all points, and to
    the learnable parameters. Points in float16 or bfloat16 are embedded in float32, also under autocast, and the result
    has their dtype. An item of a batch depends neither on other items nor on padding, up to round-off and the basis of
    an eigenspace; columns for which it has too few points are zero (a single set raises an error).

    Tensors after ``fit``: embedding_ ``(N, n_components)``, eigenvalues_ and residuals_ ``(n_components,)``, gap_
    ``()``, as of `Embedding`. They are part of ``state_dict``, which loads into a module of the same configuration.

    A method defines the hooks ``_fit_points``, ``_extend`` and ``_width``. It overrides ``_checked`` if it accepts
    other input than points or their pairs (an option `Precomputed`), and ``_embed`` if it solves a batch at once.

    Args:
        n_components: number of columns of the embedding, ≥ 1.
        solve: options of the eigensolve, a `Solve`, a solver, or None for the default.

    Principal components, as a method with the whole contract:

    >>> class Components(EmbeddingModule):
    ...     FITTED = (*EmbeddingModule.FITTED, "middle", "directions")
    ...
    ...     def __init__(self, n_components=2):
    ...         super().__init__(n_components, None)
    ...
    ...     def _fit_points(self, x, solved, *, fill):
    ...         middle, k = x.mean(0), self.n_components
    ...         lengths, turn = torch.linalg.svd(x - middle)[1:]
    ...         state = {"train_points": x, "middle": middle, "directions": turn[:k].mT}
    ...         values, gap = lengths[:k] ** 2, torch.tensor(torch.inf)
    ...         state |= {"eigenvalues_": values, "residuals_": 0 * values, "gap_": gap}
    ...         return state | {"embedding_": self._extend(x, state)}
    ...
    ...     def _extend(self, x, state):
    ...         return (x - state["middle"]) @ state["directions"]
    ...
    ...     def _width(self, state):  # numbers of memory for a new point
    ...         return len(state["middle"])
    >>> x = torch.rand(2, 30, 4, dtype=torch.float64)  # two sets
    >>> mask = torch.arange(30) < torch.tensor([[30], [20]])  # the second of 20 points
    >>> model = Components(3)
    >>> model(x, mask=mask).shape
    torch.Size([2, 30, 3])
    >>> torch.allclose(model.fit(x[0]).transform(x[0, :5]), model.embedding_[:5])
    True
    """

    FITTED: ClassVar[tuple[str, ...]] = ("embedding_", "eigenvalues_", "residuals_", "gap_", "train_points")
    LACKING: ClassVar[float] = math.inf  # the eigenvalue of a missing column
    n_components: Any
    embedding_: Tensor

    def __init__(self, n_components: int, solve: Solve | Solver | None) -> None:
        super().__init__()
        self.width = self.n_components = checks.check_width(n_components, "n_components")
        self.solve = check_solve(solve)

    def forward(self, x: Tensor | Graph, mask: Tensor | None = None, **options: Any) -> Tensor:
        """Return the embedding ``(N, n_components)`` or ``(B, N, n_components)`` of points, with gradients.

        Args:
            x: ``(N, D)`` or ``(B, N, D)``, floating; the dtype and device are kept. For a module of pairs, ``(N, N)``
                or ``(B, N, N)``.
            mask: bool ``(N,)`` or ``(B, N)``, False for padding, which may hold any numbers; its rows are zero, and so
                are its gradients.
            options: of ``embed``, where a method has some.
        """
        return self.embed(x, mask, **options).embedding

    @precision.full_precision
    def embed(self, x: Tensor | Graph, mask: Tensor | None = None) -> Embedding:
        """Return the embedding of ``forward`` with eigenvalues, residuals and eigengap; the arguments are the same."""
        points, mask = self._checked(checks.half_to_float32(x), mask)
        solved: list[Eigenpairs] = []
        with self._reported():
            return as_returned(self._steps._embed(points, mask, solved), x, solved)

    @torch.no_grad()
    @precision.full_precision
    def fit(self: Own, x: Tensor | Graph) -> Own:
        """Embed one set of points ``(N, D)``, keep the tensors that ``transform`` needs, and return the module.

        Half precision is kept as float32.
        """
        points, _ = self._checked_one(x)
        with self._reported():
            self._keep(self._steps._fit_points(points, [], fill=False), x)
        return self

    def fit_transform(self, x: Tensor | Graph) -> Tensor:
        """Return ``embedding_`` ``(N, n_components)`` of ``fit(x)``, in the dtype of ``x``; raise as ``fit``."""
        return like_given(self.fit(x).embedding_, x)

    @precision.full_precision
    def out_of_sample(self, x: Tensor | Graph, x_new: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return embeddings of points and of new points, as ``fit(x)`` and ``transform(x_new)`` do, but keep no fit.

        Gradients flow to points and new points, and to the learnable parameters.

        Args:
            x, mask: as for ``forward``; each item of a batch is embedded on its own.
            x_new: ``(Q, D)`` or ``(B, Q, D)``; for a module of pairs, the pairs of new points and points, ``(Q, N)`` or
                ``(B, Q, N)``. There is no mask of new points: rows that pad them must be finite, and are embedded.
        """
        points, mask = self._checked(checks.half_to_float32(x), mask)
        with self._reported():
            return self._with_new(x, points, x_new, self._fits(points, mask, []))

    @torch.no_grad()
    def frozen(self) -> nn.Module:
        """Return ``transform`` of this fit as a plain module of dense operations, for `torch.export` and ONNX.

        Each new point is compared to all training points, in O(Q·N) memory, without checks and warnings: points that
        are not finite give rows that mean nothing. Rows and gradients equal those of ``transform`` to 1e-5 of the
        largest, but for ties between equally far neighbours. Rows have the dtype of the new points; casts do not reach
        the numbers inside, mostly float64. It is a copy: later fits and trainings do not change it.

        Raises: TypeError: `Isomap` and `LLE`, whose rows need shortest paths or solves, and the user's own rules.

        >>> from torch_lapeig import KNN, LaplacianEigenmaps
        >>> x = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
        >>> model, new = LaplacianEigenmaps(2, KNN(6)).fit(x), x[:5] + 0.01
        >>> program = torch.export.export(model.frozen(), (new,))
        >>> torch.allclose(program.module()(new), model.transform(new), atol=1e-5)
        True
        """
        if type(self)._frozen is not EmbeddingModule._frozen:  # else no fit helps
            self.check_fitted()
        state = {name: checks.half_to_float32(value).detach() for name, value in self._fitted().items()}
        return self._steps._frozen(state).eval()  # type: ignore[no-any-return]

    def _frozen(self, state: State) -> nn.Module:
        """Return the module of ``frozen``, which calls ``_of_all`` for the rows."""
        others = "LaplacianEigenmaps, SpectralClustering, MDS or KernelPCA"
        raise TypeError(f"{type(self).__name__} cannot be frozen: new points need searches or solves; use {others}")

    def _embed(self, x: Any, mask: Tensor | None, solved: list[Eigenpairs]) -> Embedding:
        """Return the embedding of checked points, item by item of a batch; append the solved pairs to ``solved``."""
        *batch, n = shape_of(x)
        names = ("eigenvalues_", "residuals_", "gap_")
        fits = self._fits(x, mask, solved)
        parts = [(_scatter_rows(places, fit["embedding_"], n), *(fit[name] for name in names)) for fit, places in fits]
        y, values, residuals, gap = (torch.stack(part) if batch else part[0] for part in zip(*parts, strict=True))
        return Embedding(y, values, residuals, gap, ())

    def _fits(self, x: Any, mask: Tensor | None, solved: list[Eigenpairs]) -> Fits:
        """Yield the fit of each set of points, and the positions of its points; None for all positions."""
        of_batch = len(shape_of(x)) > 1
        for item, places in self._items(x, mask):
            if places is None or len(places) > 1 or not of_batch:
                yield self._steps._fit_points(item, solved, fill=of_batch), places
                continue
            # An item of at most one point has zeros, which are connected to the points by autograd.
            values = item.weight if isinstance(item, Graph) else item
            nothing = {"embedding_": values.flatten()[:0].sum().expand(len(places), self.width)}
            for name, value in (("eigenvalues_", self.LACKING), ("residuals_", 0.0)):
                nothing[name] = values.new_full((self.width,), value)
            yield nothing | {"gap_": values.new_full((), math.inf)}, places

    @abstractmethod
    def _fit_points(self, x: Any, solved: list[Eigenpairs], *, fill: bool) -> State:  # fill: missing columns with 0
        """Return the tensors of ``FITTED`` of checked points; append the pairs of each eigenproblem to ``solved``."""


def with_random_signs(y: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return each column of each graph times −1 or 1."""
    device = y.device if generator is None else generator.device
    heads = torch.randint(0, 2, (*y.shape[:-2], 1, y.shape[-1]), generator=generator, device=device)
    return y * (2 * heads - 1).to(y.device)


def shape_of(x: Any) -> tuple[int, ...]:
    """Return ``(N,)`` or ``(B, N)`` of points or of a graph."""
    return tuple(x.shape) if isinstance(x, Graph) else tuple(x.shape[:-1])


def like_given(value: Tensor, x: Any) -> Tensor:
    """Return ``value``, in half precision if ``x`` is."""
    return value.to(x.dtype) if isinstance(x, Tensor) and x.dtype in checks.HALVES else value


def as_returned(found: Embedding, x: Any, solved: list[Eigenpairs]) -> Embedding:
    """Return an embedding with its pairs, in half precision if the points ``x`` are."""
    if isinstance(x, Tensor) and x.dtype in checks.HALVES:
        found = found._replace(embedding=found.embedding.to(x.dtype), eigenvalues=found.eigenvalues.to(x.dtype))
    return found._replace(pairs=tuple(solved))


def match_dtype(x: Any, embedding: Tensor) -> Any:
    """Return new points of half precision in the dtype of the fit, others unchanged."""
    return x.to(embedding.dtype) if isinstance(x, Tensor) and x.dtype in checks.HALVES else x


def _scatter_rows(places: Tensor | None, rows: Tensor, n: int) -> Tensor:
    """Return ``n`` rows: the given ones at their positions, zeros elsewhere."""
    return rows if places is None else rows.new_zeros(n, rows.shape[-1]).index_copy(0, places, rows)
