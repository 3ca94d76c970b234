"""Few labels, many points: methods that carry labels along a graph, and 1-NN, on many splits of a data set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import torch_lapeig as tl
from experiments.data import Split
from torch_lapeig.graph import Weighting

CLASSES = 10
UNKNOWN = -1  # the label of a point without one
COLUMNS = 10  # of the eigenmaps in which the nearest label is looked for
RIDGE = 1e-6  # that of EigenmapsRegression
GIVEN = tl.Precomputed("affinity")

# By name: how it is called, and the module.
WEIGHTINGS: dict[str, tuple[str, Callable[[], Weighting]]] = {
    "heat": ("heat, median", tl.HeatKernel),
    "simple": ("simple", tl.SimpleWeights),
    "self_tuning": ("self-tuning", tl.SelfTuning),
    "density_corrected": ("density-corrected", tl.DensityCorrected),
}
PLAIN, PRIOR = "plain", "prior"  # scores as they are, and scaled to equal shares of the classes


class Points(NamedTuple):
    """All points of a data set ``(N, D)`` and their labels ``(N,)``."""

    x: Tensor
    labels: Tensor


class Method(NamedTuple):
    """A way from few labels to all, on a graph.

    Attributes:
        weighting, neighbors, symmetrize: of the graph.
        kind: spreading, harmonic, regression, eigenmaps (1-NN in them) or pixels (1-NN, no graph).
        number: α of spreading, columns of the regression; 0 for the others.
        variant: `PLAIN` or `PRIOR`.
    """

    weighting: str = "heat"
    neighbors: int = 10
    symmetrize: str = "mean"
    kind: str = "spreading"
    number: float = 0.99
    variant: str = PLAIN

    @property
    def case(self) -> tuple[str | int | float, ...]:
        """Return all but the variant, as both come from one solve."""
        return tuple(self[:-1])

    def __str__(self) -> str:
        names = {
            "spreading": f"label spreading, α = {self.number:g}",
            "harmonic": "harmonic functions",
            "regression": f"eigenmaps regression, {self.number:g} columns",
            "eigenmaps": f"eigenmaps, {COLUMNS} columns, 1-NN",
            "pixels": "pixels, 1-NN",
        }
        graph = f", {WEIGHTINGS[self.weighting][0]}, k = {self.neighbors}, {self.symmetrize}"
        prior = ", class prior" if self.variant == PRIOR else ""
        return names[self.kind] + ("" if self.kind == "pixels" else graph) + prior

    def rule(self) -> tl.KNN:
        """Return the rule of the graph."""
        return tl.KNN(self.neighbors, self.symmetrize)  # type: ignore[arg-type]

    def weights(self) -> Weighting:
        """Return the weighting of the edges."""
        return WEIGHTINGS[self.weighting][1]()

    def module(self) -> Any:
        """Return the module as a user writes it, with ``fit(x, labels)`` and ``predict``."""
        prior: Literal["labels"] | None = "labels" if self.variant == PRIOR else None
        if self.kind == "spreading":
            return tl.LabelSpreading(
                self.rule(), self.weights(), alpha=self.number, class_prior=prior, n_classes=CLASSES
            )
        if self.kind == "harmonic":
            return tl.HarmonicFunction(self.rule(), self.weights(), class_prior=prior, n_classes=CLASSES)
        return tl.EigenmapsRegression(int(self.number), self.rule(), self.weights(), n_classes=CLASSES)


def labelled(labels: Tensor, count: int, seed: int) -> Tensor:
    """Return indices of ``count`` random examples of each class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return torch.cat([order[labels[order] == c][:count] for c in range(CLASSES)])


def known(labels: Tensor, chosen: Tensor) -> Tensor:
    """Return the labels of the chosen points, −1 elsewhere."""
    return torch.full_like(labels, UNKNOWN).index_copy_(0, chosen, labels[chosen])


@dataclass(frozen=True)
class Transduction:
    """Accuracy of a method at the points without label of a whole data set, on many choices of the labelled ones.

    Attributes:
        points: the data set of a name.
        pattern: the graph of (name, neighbors, symmetrize) before it is weighted.
        counts: numbers of labelled points of each class.
    """

    points: Callable[[str], Points]
    pattern: Callable[[str, int, str], tl.Graph]
    counts: list[int]

    def __call__(self, name: str, first: int, splits: int, *method: Any) -> dict[str, Any]:
        """``{count: {variant: accuracies}}`` for the seeds from ``first`` on."""
        way, (x, labels) = Method(*method), self.points(name)
        graph = way.weights()(x, self.pattern(name, way.neighbors, way.symmetrize))
        result = {}
        for count in self.counts:
            chosen = [labelled(labels, count, seed) for seed in range(first, first + splits)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", tl.GraphWarning)  # points that no label reaches count as wrong
                found = predictions(way, graph, x, labels, chosen)
            result[str(count)] = {variant: _accuracies(of, labels, chosen) for variant, of in found.items()}
        return result


def _accuracies(predicted: Sequence[Tensor], labels: Tensor, chosen: Sequence[Tensor]) -> list[float]:
    """Return share of right predictions among the points without label."""
    result = []
    for of_split, places in zip(predicted, chosen, strict=True):
        right = (of_split == labels).double().index_fill_(0, places, 0)
        result.append(float(right.sum() / (len(labels) - len(places))))
    return result


def predictions(
    way: Method, graph: tl.Graph, x: Tensor, labels: Tensor, chosen: Sequence[Tensor]
) -> dict[str, list[Tensor]]:
    """Return predicted labels ``(N,)`` of each split, plain, and with equal class shares for positive scores.

    What does not depend on the labels is computed once: eigenvectors; and label spreading, being linear in the labels,
    solves for all splits together.
    """
    if way.kind in ("pixels", "eigenmaps"):
        places = x if way.kind == "pixels" else tl.LaplacianEigenmaps(COLUMNS, GIVEN)(graph)
        return {PLAIN: [nearest_label(places, places[of], labels[of]) for of in chosen]}
    targets = torch.stack([one_hot(labels, CLASSES) * _members(len(labels), of)[:, None] for of in chosen], 1)
    if way.kind == "regression":
        basis = tl.eigenpairs(tl.Laplacian(graph, "random_walk"), int(way.number)).vectors.double()
        return {PLAIN: [regressed(basis, of, target) for of, target in zip(chosen, targets.unbind(1), strict=True)]}
    if way.kind == "spreading":
        scores = tl.LabelSpreading(GIVEN, alpha=way.number)(graph, targets.flatten(1).to(x.dtype))
        scores = scores.unflatten(1, targets.shape[1:])
    else:
        harmonic = tl.HarmonicFunction(GIVEN, class_prior=None, n_classes=CLASSES)
        scores = torch.stack([harmonic(graph, known(labels, of)) for of in chosen], 1)
    # Each class has as many labels, so that class_prior="labels" is "uniform", and a factor does not matter.
    return {PLAIN: _classes(scores), PRIOR: _classes(scores / scores.sum(0))}


def _members(n: int, places: Tensor) -> Tensor:
    return torch.zeros(n, dtype=torch.bool).index_fill_(0, places, True)


def _classes(scores: Tensor) -> list[Tensor]:
    """Return labels of scores ``(N, S, C)``, split by split; −1 for zeros."""
    return list(torch.where((scores != 0).any(-1), scores.argmax(-1), UNKNOWN).unbind(1))


def regressed(basis: Tensor, chosen: Tensor, targets: Tensor) -> Tensor:
    """Return the predictions of `EigenmapsRegression` from eigenvectors ``(N, p)``."""
    rows = basis[chosen]
    gram = rows.mT @ rows
    gram = gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    coefficients: Tensor = torch.linalg.solve(gram, rows.mT @ targets[chosen].double())
    return (basis @ coefficients).argmax(1)


def nearest_label(y: Tensor, at: Tensor, labels: Tensor) -> Tensor:
    """Return the label of the nearest of the places ``at``, for each row of ``y``."""
    near = torch.cat([torch.cdist(block, at).argmin(1) for block in y.split(4096)])
    return labels[near]


def new_points(split: Split, counts: Sequence[int], seed: int, recipe: Method) -> dict[str, dict[str, float]]:
    """Return accuracy at the held-out points, which no method has seen, ``{method: {count: accuracy}}``."""
    maps = tl.LaplacianEigenmaps(COLUMNS).fit(split.train)
    result: dict[str, dict[str, float]] = {"pixels": {}, "eigenmaps": {}, "recipe": {}}
    for count in counts:
        chosen = labelled(split.train_labels, count, seed)
        labels = split.train_labels[chosen]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tl.GraphWarning)
            fitted = recipe.module().fit(split.train, known(split.train_labels, chosen))
            found = {
                "pixels": nearest_label(split.heldout, split.train[chosen], labels),
                "eigenmaps": nearest_label(maps.transform(split.heldout), maps.embedding_[chosen], labels),
                "recipe": fitted.predict(split.heldout),
            }
        for name, predicted in found.items():
            result[name][str(count)] = float((predicted == split.heldout_labels).double().mean())
    return result
