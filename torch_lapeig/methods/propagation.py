"""Labels carried along a graph: label spreading, harmonic functions, and regression on eigenvectors."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig.eigen import Laplacian, NullSpace, Solve, Solver, SymmetricOperator, eigenpairs, solve_linear
from torch_lapeig.eigen.gradient.rule import outside
from torch_lapeig.eigen.gradient.system import off_diagonal
from torch_lapeig.eigen.laplacian import Normalization
from torch_lapeig.graph import KNN, Graph, Weighting
from torch_lapeig.graph.rules import GraphRule
from torch_lapeig.methods.grounded import Grounded
from torch_lapeig.methods.module import check_solve
from torch_lapeig.methods.on_graph import NewAffinities, check_size, nystrom
from torch_lapeig.methods.semisupervised import ClassPrior, SemiSupervised, Unreached
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State
from torch_lapeig.support.threads import solve_each


class LabelSpreading(SemiSupervised):
    """Scores F = (1 − α)(I − α S)⁻¹ Y with S = D^-½ W D^-½ (Zhou, Bousquet, Lal, Weston & Schölkopf 2004, section 2).

    F is the limit of F ← α S F + (1 − α) Y, the iteration of scikit-learn's `LabelSpreading`, to round-off: each node
    takes the share α from its neighbours and keeps 1 − α of its own label, so that wrong labels can be corrected.

    Args:
        neighbors: rule of the graph, as for `LaplacianEigenmaps`; ``Precomputed("affinity")`` for affinities or a
            `Graph`.
        weights: weighting of the edges; default ``HeatKernel("median")``. None with ``Precomputed``.
        alpha: α, above 0 and below 1. The paper has 0.99. With scikit-learn's default 0.2, labels hardly spread: they
            reach about 1/√(2 − 2α) edges.
        class_prior: shares of the classes, to which the sums of their scores are scaled (class mass normalisation: Zhu,
            Ghahramani & Lafferty 2003, section 4). Without it, a class with central labels takes nodes of others.
            ``"labels"``: the shares of the labels with one more of each class; ``"uniform"``: equal shares; or numbers
            ``(C,)`` that are positive and sum to 1. Each column is multiplied by one factor, such that all scores sum
            to the number of reached nodes. None: no scaling.
        n_classes, unreached: see `SemiSupervised`.

    Scores are not probabilities: their sum falls with the distance from labels. Each row is accurate relative to its
    largest score, however small; one too small for the dtype is scaled up, with the same shares of the classes. A new
    point x has the scores α Σ_i W(x, i) (D(x) d_i)^-½ F_i, its row of the system. For the rest see `SemiSupervised`.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.cat([torch.randn(30, 2), torch.randn(30, 2) + 6])
    >>> labels = torch.full((60,), -1)
    >>> labels[0], labels[30] = 0, 1
    >>> model = LabelSpreading(KNN(12)).fit(x, labels)
    >>> model.predict()[[5, 45]].tolist(), model.predict(x[30:31] + 0.1).tolist()
    ([0, 1], [1])
    """

    FITTED = (*SemiSupervised.FITTED, "train_degrees", "train_growth", "train_source")

    def __init__(
        self,
        neighbors: GraphRule = KNN(10),
        weights: Weighting | None = None,
        *,
        alpha: float = 0.99,
        class_prior: ClassPrior = None,
        n_classes: int | None = None,
        unreached: Unreached = None,
    ) -> None:
        super().__init__(neighbors, weights, n_classes, unreached, class_prior)
        self.alpha = checks.check_number(alpha, "alpha", 0, 1)
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must be above 0 and below 1, got {alpha}; HarmonicFunction keeps all labels")

    def _solved(self, graph: Graph, targets: Tensor, labelled: Tensor, reached: Tensor, *, fill: bool) -> State:
        laplacian, source = Laplacian(graph.to(torch.float64), "symmetric"), (1 - self.alpha) * targets
        return {
            "scores_": self._spread(laplacian, source, reached),
            "train_degrees": laplacian.degrees,
            "train_growth": torch.full_like(laplacian.degrees, self.alpha),
            "train_source": source,
        }

    def _spread(self, laplacian: Laplacian, source: Tensor, reached: Tensor) -> Tensor:
        """Return F = (I − α S)⁻¹ source to a relative accuracy in each row that is reached."""
        pattern = laplacian.graph.pattern
        degrees = checks.primal(laplacian.degrees).reshape(laplacian.graph.batch_size, -1)
        part = torch.zeros_like(degrees, dtype=torch.int64)
        system = SymmetricOperator(
            pattern,
            self.alpha * laplacian.values,
            torch.ones_like(laplacian.degrees),
            bound=degrees.new_full((len(degrees),), 2.0),
            null=NullSpace(degrees.sqrt(), part, part[:, 0]),
            of_affinities=True,
            trusted=True,
            excess=(1 - self.alpha) * degrees,  # D − α W is the Laplacian of α W plus this
        )
        known, scores = torch.zeros_like(reached), torch.zeros_like(source)
        unit = source.new_zeros(*source.shape[:-2], 1, 1)  # binary logarithm of the unit of a solve
        units = torch.zeros_like(source[..., :1])  # binary logarithms of the units of resolved rows
        # A solve has the round-off of its largest entries, and scores fall with the distance from labels: with the rows
        # that are resolved given, the others are solved for in a unit of their own.
        while (reached & ~known).any():
            inflow = _times_power(scores, units - unit)
            given = self.alpha * pattern.matmul(laplacian.values, inflow, is_symmetric=True)
            given = ~known[..., None] * (given + _times_power(source, -unit))
            size = checks.power_of_two(given, (-2, -1))
            given, unit = given / size, unit + size.log2()
            rows = solve_linear(system.clamped(known), given)
            rest = self.alpha * pattern.matmul(laplacian.values, rows, is_symmetric=True) + given - rows
            largest, error = (part.detach().abs().amax(-1, keepdim=True) for part in (rows, rest / (1 - self.alpha)))
            largest, error = (part.masked_fill((known | ~reached)[..., None], 0) for part in (largest, error))
            # Errors below 1e-9 of their row do not count. Scores of a million times the error have six digits, and
            # those near the largest count as resolved in any case. Below 1e-280 digits are lost.
            error = torch.where(error > 1e-9 * largest, error, 0).amax(-2, keepdim=True)
            least = torch.minimum(1e6 * error, 0.1 * largest.amax(-2, keepdim=True)).clamp_min(1e-280)
            if not (resolved := largest >= least).any():
                break
            rows = rows + rest
            size = checks.power_of_two(rows, (-1,))
            scores, units = torch.where(resolved, rows / size, scores), torch.where(resolved, unit + size.log2(), units)
            known = known | resolved[..., 0]
        return _times_power(scores, units)

    def _extended(self, new: NewAffinities, state: State) -> Tensor:
        return _own_row(new, state, self.alpha, "symmetric")


class HarmonicFunction(SemiSupervised):
    """Scores that equal the labels at labelled nodes, and elsewhere the mean of the neighbours, weighted by W.

    They solve L_uu F_u = W_ul Y_l (Zhu, Ghahramani & Lafferty 2003), minimise tr(Fᵀ L F) with F_l = Y_l, and are the
    probabilities that a random walk first meets a label of each class. Labels are kept, and reach all connected nodes.
    With few labels in many dimensions F is nearly constant except for spikes at the labels (Nadler, Srebro & Zhou
    2009).

    Args:
        neighbors, weights: as for `LaplacianEigenmaps`.
        class_prior: as for `LabelSpreading`, but ``"labels"`` by default: with few labels it removes most of the effect
            of the spikes. None for the harmonic functions themselves, as for soft labels that are not classes.
        n_classes, unreached: see `SemiSupervised`.

    Without a ``class_prior`` the scores of each node that a label reaches sum to 1 (with soft labels: to a mean of
    their sums) and equal the labels at labelled nodes; the prior multiplies each class by one factor. Weights may
    have any range: nodes that round-off hides are eliminated without subtractions. If this would take too long, a
    `ConvergenceWarning` counts these nodes, and their scores are zero. A new point gets the weighted mean of its
    neighbours, and a fitted point its own scores. For the rest see `SemiSupervised`.

    >>> path = torch.arange(5.0)[:, None]
    >>> labels = torch.tensor([0, -1, -1, -1, 1])
    >>> from torch_lapeig import Radius, SimpleWeights
    >>> HarmonicFunction(Radius(1.5), SimpleWeights(), class_prior=None)(path, labels)[:, 1]
    tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """

    FITTED = (*SemiSupervised.FITTED, "train_growth", "train_source")

    def __init__(
        self,
        neighbors: GraphRule = KNN(10),
        weights: Weighting | None = None,
        *,
        class_prior: ClassPrior = "labels",
        n_classes: int | None = None,
        unreached: Unreached = None,
    ) -> None:
        super().__init__(neighbors, weights, n_classes, unreached, class_prior)

    def _solved(self, graph: Graph, targets: Tensor, labelled: Tensor, reached: Tensor, *, fill: bool) -> State:
        graph = graph.to(torch.float64)
        if graph.pattern.has_loops(graph.weight):  # a loop has no effect on a harmonic function but round-off
            graph = graph._with(weight=graph.pattern.without_loops(graph.weight))
        free = reached & ~labelled
        inflow = free[..., None] * graph.pattern.matmul(graph.weight, targets, is_symmetric=True)
        blocks = inflow.reshape(graph.batch_size, graph.num_nodes, -1)
        z = outside(Grounded(graph, free), blocks[:, :0, :0], blocks[..., :0], -blocks, graph.weight)
        scores = torch.where(free[..., None], z.reshape(targets.shape), targets)
        return {"scores_": scores, "train_growth": free.double(), "train_source": targets}

    def _extended(self, new: NewAffinities, state: State) -> Tensor:
        return _own_row(new, state, 1.0)


class EigenmapsRegression(SemiSupervised):
    """Least squares of the labels on the smoothest functions of the graph (Belkin & Niyogi 2004, section 2).

    The basis consists of the eigenvectors of L y = λ D y of the ``n_components`` smallest eigenvalues, the constant one
    included. Its coefficients are fitted to the labelled nodes only. With fewer columns the scores are smoother.

    Args:
        n_components: p, number of eigenvectors: more than classes, and at most half of the number of labels (a fifth in
            the paper). With as many as labels the regression interpolates, and tells the others worst.
        neighbors, weights: as for `LaplacianEigenmaps`.
        ridge: ρ > 0, penalty on the squares of the coefficients, relative to the mean over columns of their squares at
            the labelled nodes; 1e-2 where few labels leave no room for p. With fewer labels than columns the
            coefficients are nearly the smallest that fit.
        n_classes, unreached: see `SemiSupervised`.
        solve: options of the eigensolve, a `Solve`, or just a solver.

    Scores are the values of the regression, of any sign; those of new points follow from Nyström's formula, as in
    `LaplacianEigenmaps`. For the rest see `SemiSupervised`.

    Tensors after ``fit``: scores_ ``(N, C)``, coefficients_ ``(n_components, C)``.

    >>> x = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    >>> labels = torch.full((40,), -1)
    >>> labels[[0, 10]], labels[[30, 39]] = 0, 1
    >>> EigenmapsRegression(2, KNN(4)).fit(x, labels).predict()[[5, 35]].tolist()
    [0, 1]
    """

    FITTED = (*SemiSupervised.FITTED, "coefficients_", "train_vectors", "train_eigenvalues")

    def __init__(
        self,
        n_components: int,
        neighbors: GraphRule = KNN(10),
        weights: Weighting | None = None,
        *,
        ridge: float = 1e-6,
        n_classes: int | None = None,
        unreached: Unreached = None,
        solve: Solve | Solver | None = None,
    ) -> None:
        super().__init__(neighbors, weights, n_classes, unreached)
        self.n_components = checks.check_width(n_components, "n_components")
        self.ridge = checks.check_positive(ridge, "ridge")
        self.solve = check_solve(solve)

    def _solved(self, graph: Graph, targets: Tensor, labelled: Tensor, reached: Tensor, *, fill: bool) -> State:
        laplacian = Laplacian(graph, "random_walk")
        if not fill:
            check_size(laplacian, self.n_components, "n_components")
        pairs = eigenpairs(laplacian, self.n_components, self.solve, fill=fill)
        basis, known = pairs.vectors.double(), labelled[..., None]
        at_labels = basis * known
        gram = precision.matmul(at_labels.mT, at_labels)
        # All columns have one ridge, so the choice of basis at equal eigenvalues does not matter.
        size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        ridge = self.ridge * torch.where(size > 0, size, 1)
        gram = gram + ridge * torch.eye(self.n_components, dtype=gram.dtype, device=gram.device)
        coefficients = solve_each(gram, precision.matmul(at_labels.mT, targets))
        found = {
            "scores_": torch.where(reached[..., None], precision.matmul(basis, coefficients), 0),
            "coefficients_": coefficients,
            "train_vectors": basis * reached[..., None],
            "train_eigenvalues": pairs.values.masked_fill(pairs.values.isinf(), 0),
        }
        if checks.needs_derivatives(basis):  # no fit keeps it
            found["off"] = off_diagonal(pairs.projected, self.n_components)
        return found

    def _extended(self, new: NewAffinities, state: State) -> Tensor:
        return precision.matmul(nystrom(new, state), state["coefficients_"])


def _times_power(scores: Tensor, exponent: Tensor) -> Tensor:
    """Return scores times 2^``exponent``, which is exact; exponents are limited to the range of float64."""
    # Scores of a solve are as small as 1e-280, 2^-930, of its unit, and keep their size. Powers above 2^900 belong to
    # rows that contribute to no sum, so the upper limit only leaves room for sums.
    return scores * exponent.clamp(-1020, 900).exp2()


def _own_row(new: NewAffinities, state: State, growth: float, normalization: Normalization = "random_walk") -> Tensor:
    """Return the rows of the system at new points: scores of their neighbours, plus the own label of a fitted point."""
    scores = state["scores_"]
    values = scores.new_zeros(scores.shape[1])
    rows = nystrom(new, state | {"embedding_": scores, "train_eigenvalues": values}, normalization)
    is_fitted, place = new.same >= 0, new.same.clamp_min(0)
    factor = torch.where(is_fitted, state["train_growth"][place], growth)[:, None]
    return factor * rows + torch.where(is_fitted[:, None], state["train_source"][place], 0)
