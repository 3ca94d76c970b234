"""The contract of methods that carry labels along a graph: points and some labels to scores, with gradients."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from torch_lapeig.graph import Graph
from torch_lapeig.graph.graph import check_graph
from torch_lapeig.graph.rules import GraphRule, check_rule_and_weights
from torch_lapeig.graph.search.neighbors import nearest_neighbors
from torch_lapeig.graph.weights import Weighting
from torch_lapeig.methods.module import Fits, like_given, shape_of
from torch_lapeig.methods.on_graph import GRAPH_STATE, OnGraph, fitted_graph
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State

Own = TypeVar("Own", bound="SemiSupervised")
Unreached = Literal["nearest"] | None
ClassPrior = Literal["labels", "uniform"] | Sequence[float] | None

UNLABELLED = -1


class SemiSupervised(OnGraph):
    """Contract of methods that carry labels of a few nodes of a graph to all its nodes, and to new points.

    ``forward(x, labels)`` returns scores with gradients to labels, points and the parameters of the weighting.
    ``fit(x, labels)`` keeps the scores of one set, and ``predict()`` returns its labels; ``transform`` and ``predict``
    return scores and labels of new points. Points are one set ``(N, D)`` or a batch ``(B, N, D)`` with a mask; with
    ``Precomputed("affinity")`` affinities or a `Graph` take their place. Systems are solved in float64 for every dtype.

    Labels are int64, ``(N,)`` or ``(B, N)``, counted from 0, with −1 for an unlabelled node. Or they are soft:
    ``(N, C)`` or ``(B, N, C)``, floating and non-negative, with a row of zeros for an unlabelled node; gradients flow
    to the other rows.

    A node that no path joins to a label has scores of zero and the label −1, with a `GraphWarning`, because the graph
    holds no information about its class. So has a new point if all its neighbours are such nodes. With
    ``unreached="nearest"`` such points have the label of the nearest labelled point, by the metric of the graph.

    A method defines ``_solved`` and ``_extended``.

    Args:
        neighbors: rule of the graph, `KNN`, `Radius` or ``Precomputed("affinity")``.
        weights: weighting of the edges, see `LabelSpreading`; None with ``Precomputed``.
        n_classes: number C of classes, ≥ 1, or None: the largest label plus one, or the number of columns of soft
            labels.
        unreached: None, or ``"nearest"``: see above; only of points. The row of scores is the row of the label, 1 at
            its class. On tables it gains points of accuracy (docs/newpoints.md).
        class_prior: shares of the classes in the scores, or None, see `LabelSpreading`.

    Raises:
        TypeError, ValueError: an argument of another type or out of range; see also `forward`.

    >>> from torch_lapeig import KNN, HarmonicFunction
    >>> x = torch.tensor([[0.0], [1.0], [2.0], [9.0], [10.0], [11.0]])
    >>> model = HarmonicFunction(KNN(3)).fit(x, torch.tensor([0, -1, -1, -1, -1, 1]))
    >>> (
    ...     isinstance(model, SemiSupervised),
    ...     model.predict().tolist(),
    ...     model.predict(torch.tensor([[10.5]])).tolist(),
    ... )
    (True, [0, 0, 0, 1, 1, 1], [1])
    """

    FITTED: ClassVar[tuple[str, ...]] = ("scores_", "train_points", *GRAPH_STATE, "train_targets", "train_filled")

    def __init__(
        self,
        neighbors: GraphRule,
        weights: Weighting | None,
        n_classes: int | None,
        unreached: Unreached = None,
        class_prior: ClassPrior = None,
    ) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.weights = check_rule_and_weights(neighbors, weights)
        self.n_classes = None if n_classes is None else checks.check_width(n_classes, "n_classes")
        if unreached is not None:
            checks.check_choice(unreached, "unreached", ("nearest",))
            if self.pairs_given is not None:
                raise ValueError(f'unreached="nearest" needs points, got neighbors={neighbors}; use KNN(k), or None')
        self.unreached: Unreached = unreached
        self.class_prior = _checked(class_prior)

    @precision.full_precision
    def forward(self, x: Tensor | Graph, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return scores ``(N, C)`` or ``(B, N, C)`` of all nodes, with gradients, in the dtype of ``x``.

        Args:
            x: points ``(N, D)`` or ``(B, N, D)``, floating; affinities or a `Graph` with ``Precomputed("affinity")``.
            labels: ``(N,)`` or ``(B, N)``, or soft labels with one more axis; see the class.
            mask: bool ``(N,)`` or ``(B, N)``, False for padding, which may hold any numbers; its scores are zero. None
                with a `Graph`, which has its own mask.

        Raises:
            TypeError, ValueError: labels of another kind, shape or range, or none; points as for `EmbeddingModule`.
        """
        points, mask = self._checked(checks.half_to_float32(x), mask)
        targets, of_batch = self._targets(labels, points, mask), len(shape_of(points)) > 1
        return like_given(self._carried(self._graph(points, mask), points, *targets, fill=of_batch)["scores_"], x)

    @torch.no_grad()
    @precision.full_precision
    def fit(self: Own, x: Tensor | Graph, labels: Tensor) -> Own:
        """Keep the scores of one set of points ``(N, D)`` and the tensors that new points need; return the module.

        Raises:
            TypeError, ValueError: a batch; and the errors of ``forward``.
        """
        points, mask = self._checked_one(x)
        self._keep(self._fit_points(points, *self._targets(labels, points, mask), fill=False), x)
        return self

    @torch.no_grad()
    def predict(self, x_new: Tensor | None = None) -> Tensor:
        """Return labels int64 ``(N,)`` of the fitted nodes, or ``(Q,)`` of new points: the class of the largest score.

        The label is −1 if all scores are zero.

        Raises:
            RuntimeError, TypeError, ValueError: see ``transform``.
        """
        self.check_fitted()
        scores = self.scores_ if x_new is None else self.transform(x_new)
        return torch.where((scores != 0).any(-1), scores.argmax(-1), UNLABELLED)

    def predict_proba(self, x_new: Tensor | None = None) -> Tensor:
        """Return each class's share in the scores, ``(N, C)`` of the fitted nodes or ``(Q, C)`` of new points.

        Rows sum to 1, or are zero where no label reaches. Scores below zero, of `EigenmapsRegression`, count as zero.

        Raises:
            RuntimeError, TypeError, ValueError: see ``transform``.
        """
        self.check_fitted()
        scores = (self.scores_ if x_new is None else self.transform(x_new)).clamp_min(0)
        total = scores.sum(-1, keepdim=True)
        return scores / torch.where(total > 0, total, 1)

    @precision.full_precision
    def out_of_sample(
        self, x: Tensor | Graph, labels: Tensor, x_new: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return scores of points and of new points, as ``fit`` and ``transform`` do, but keep no fit.

        Gradients flow to points, new points, labels, and the parameters of the weighting.

        Args:
            x, labels, mask: as for ``forward``.
            x_new: ``(Q, D)`` or ``(B, Q, D)``; affinities ``(Q, N)`` or ``(B, Q, N)`` with ``Precomputed``.

        Returns:
            ``(N, C)`` and ``(Q, C)``, with a batch axis if ``x`` has one.

        Raises:
            TypeError, ValueError: as ``fit`` and ``transform``; ``x`` and ``x_new`` with different batch axes.
        """
        points, mask = self._checked(checks.half_to_float32(x), mask)
        return self._with_new(x, points, x_new, self._fits(points, mask, *self._targets(labels, points, mask)))

    def _targets(self, labels: Any, x: Any, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return labels as rows ``(..., N, C)``, and bool ``(..., N)``: True for labelled nodes, not for padding."""
        like = x.weight if isinstance(x, Graph) else x
        checks.check_tensor(labels, "labels")
        checks.check_same_device(labels, "labels", like, "x")
        is_soft = labels.ndim == len(shape_of(x)) + 1
        rows = (_soft_rows if is_soft else _hard_rows)(labels, shape_of(x), self.n_classes, mask).to(like.dtype)
        if not (labelled := (rows.detach() > 0).any(-1)).any():
            got = "zeros" if is_soft else "−1"
            raise ValueError(f"labels must hold at least one label, got {got} for every node; label one of each class")
        return rows, labelled

    def _fits(self, x: Any, mask: Tensor | None, targets: Tensor, labelled: Tensor) -> Fits:
        """Yield the fit of each set of points, and the positions of its points; None for all positions."""
        n, of_batch = shape_of(x)[-1], len(shape_of(x)) > 1
        item_labels = zip(targets.reshape(-1, n, targets.shape[-1]), labelled.reshape(-1, n), strict=True)
        for (item, places), (target, has_label) in zip(self._items(x, mask), item_labels, strict=True):
            at = slice(None) if places is None else places
            if places is not None and len(places) == 0:
                yield {"scores_": target[at]}, places
            else:
                yield self._fit_points(item, target[at], has_label[at], fill=of_batch), places

    def _fit_points(self, x: Tensor | Graph, targets: Tensor, labelled: Tensor, *, fill: bool) -> State:
        """Return scores of one set of points, and the tensors that new points need, by the names in ``FITTED``."""
        if isinstance(x, Graph) or len(x) >= 2:
            graph, state = fitted_graph(self.neighbors, self.weights, x)
        else:
            none = torch.zeros(2, 0, dtype=torch.int64, device=x.device)
            graph, state = Graph.from_edge_index(none, x[:0, 0], len(x)), {}
        return state | self._carried(graph, x, targets, labelled, fill=fill)

    def _carried(self, graph: Graph, x: Any, targets: Tensor, labelled: Tensor, *, fill: bool) -> State:
        """Return what `_solved` does, but points that no label reaches have the row of the nearest label if asked for.

        Warn of nodes that no path joins to a label, unless they get such a row.
        """
        check_graph(graph, "affinities", type(self))
        parts = graph.connected_components().reshape(graph.batch_size, graph.num_nodes)
        number = parts.clamp_min(0)
        has_label = torch.zeros_like(number).scatter_reduce(1, number, labelled.reshape(number.shape).long(), "amax")
        reached = ((has_label.gather(1, number) > 0) & (parts >= 0)).reshape(graph.shape)
        valid = torch.ones_like(reached) if graph.mask is None else graph.mask
        lost = valid & ~reached & ~(labelled.any(-1, keepdim=True) & (self.unreached == "nearest"))
        if lost.any():
            checks.warn(
                f"{int(lost.sum())} of {int(valid.sum())} nodes lie in components of the graph without any label: "
                "their scores are zero and predict gives −1; label a node of each component, use more neighbours or a "
                'larger bandwidth, or of points unreached="nearest" with KNN(k)',
                checks.GraphWarning,
            )
        found = self._solved(graph, targets.double(), labelled, reached, fill=fill)
        if self.class_prior is not None:
            found |= _with_shares(found, targets, self.class_prior)
        found = {name: value.to(targets.dtype) for name, value in found.items()}
        if self.unreached is None:
            return found
        scores = found["scores_"].clone()
        empty = valid & ~scores.detach().any(-1)
        for at in itertools.product(*map(range, scores.shape[:-2])):
            places, known = empty[at], labelled[at]
            if places.any() and known.any():
                rows = self._of_nearest(x[at][places], x[at][known], targets[at][known])
                scores[at] = scores[at].index_put((places,), rows)
        return found | {"scores_": scores, "train_targets": targets, "train_filled": empty}

    def _of_nearest(self, x: Tensor, points: Tensor, rows: Tensor) -> Tensor:
        """Return the row ``(Q, C)`` of the nearest of some points, for each of ``x`` ``(Q, D)``."""
        metric: Any = getattr(self.neighbors, "metric", "euclidean")
        return rows[nearest_neighbors(points.detach(), 1, x.detach(), metric=metric).indices[:, 0]]

    def _extend(self, x: Tensor, state: State) -> Tensor:
        if self.unreached is None:
            return super()._extend(x, state)
        unfilled = torch.where(state["train_filled"][:, None], 0, state["scores_"])
        rows, targets = super()._extend(x, state | {"scores_": unfilled}), state["train_targets"]
        empty, known = ~rows.detach().any(-1), targets.any(-1)
        if not empty.any() or not known.any():
            return rows
        return rows.index_put((empty,), self._of_nearest(x[empty], state["train_points"][known], targets[known]))

    @abstractmethod
    def _solved(self, graph: Graph, targets: Tensor, labelled: Tensor, reached: Tensor, *, fill: bool) -> State:
        """Return ``scores_`` and the state for `_extended`; with ``fill`` a graph of a batch may be too small."""


def _hard_rows(labels: Tensor, shape: tuple[int, ...], n_classes: int | None, mask: Tensor | None) -> Tensor:
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        is_whole = not labels.is_complex() and not (labels.double().nan_to_num(-1, 0.5, 0.5) % 1).any()
        raise TypeError(
            f"labels must be integers, −1 for none, or soft, of shape {(*shape, 'C')}, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}{'; use labels.nan_to_num(-1).long()' if is_whole else ', not all whole numbers'}"
        )
    if tuple(labels.shape) != shape:
        raise ValueError(f"labels must have shape {shape}, one for each node, got {tuple(labels.shape)}")
    labels = labels.long() if mask is None else labels.long().masked_fill(~mask, UNLABELLED)
    if (labels < UNLABELLED).any():
        raise ValueError(f"labels must be at least −1, which stands for none, got {int(labels.min())}")
    classes = checks.check_classes(labels)
    count = classes if n_classes is None else n_classes
    if classes > count:
        raise ValueError(f"labels must be smaller than n_classes={count}, got {classes - 1}; they are counted from 0")
    return torch.nn.functional.one_hot(labels + 1, count + 1)[..., 1:]  # the first column is of no label


def _soft_rows(labels: Tensor, shape: tuple[int, ...], n_classes: int | None, mask: Tensor | None) -> Tensor:
    labels = checks.half_to_float32(labels)
    if labels.shape[-1] == 1 and not labels.is_floating_point():
        raise ValueError(f"labels must have shape {shape}, got {tuple(labels.shape)}; use labels.squeeze(-1)")
    checks.check_floating(labels, "labels")
    classes = labels.shape[-1] if n_classes is None else n_classes
    if tuple(labels.shape) != (*shape, classes) or classes == 0:
        expected = (*shape, "C" if n_classes is None else n_classes)
        raise ValueError(f"soft labels must have shape {expected}, a row for each node, got {tuple(labels.shape)}")
    labels = labels if mask is None else torch.where(mask[..., None], labels, 0)
    checks.check_finite(labels, "labels")
    checks.check_non_negative(labels, "labels")
    return labels


def _checked(class_prior: ClassPrior) -> str | tuple[float, ...] | None:
    """Return the class prior, checked as far as possible without the number of classes."""
    if class_prior is None:
        return None
    if isinstance(class_prior, str):
        checks.check_choice(class_prior, "class_prior", ("labels", "uniform"))
        return class_prior
    expected = '"labels", "uniform" or a share for each class'
    try:
        shares = tuple(float(share) for share in class_prior)
    except (TypeError, ValueError):
        raise TypeError(f"class_prior must be {expected}, got {checks.describe(class_prior)}") from None
    # A sum of shares may be off by rounding.
    if not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"class_prior must hold positive numbers that sum to 1, got {shares} with sum {sum(shares)}")
    return shares


def _with_shares(found: State, targets: Tensor, class_prior: str | tuple[float, ...]) -> State:
    """Return the tensors of a fit in which each class is scaled to its share of all scores."""
    # Zhu et al. sum over nodes without a label. This sum is over all nodes, so that a class whose nodes are nearly all
    # labelled does not have to take others.
    scores, classes = found["scores_"], targets.shape[-1]
    if class_prior == "labels":
        share = targets.double().sum(-2, keepdim=True) + 1
        share = share / share.sum(-1, keepdim=True)
    else:
        shares = [1 / classes] * classes if class_prior == "uniform" else class_prior
        if len(shares) != classes:
            raise ValueError(f"class_prior must have a share for each of {classes} classes, got {len(shares)}")
        share = torch.tensor(shares, dtype=scores.dtype, device=scores.device)
    reached = (scores.detach() != 0).any(-1).sum(-1)[..., None, None]
    mass = scores.sum(-2, keepdim=True)
    factor = share * reached / torch.where(mass > 0, mass, 1)  # a class without labels has no score to scale
    return {name: found[name] * factor for name in ("scores_", "train_source")}
