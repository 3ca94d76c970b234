"""The contract of methods that carry labels along a graph: points and some labels to scores, with gradients."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from torch_lapeig.graph import Graph, Weighting, nearest_neighbors
from torch_lapeig.graph.distances import distances
from torch_lapeig.graph.graph import check_graph
from torch_lapeig.graph.rules import GraphRule, check_rule_and_weights
from torch_lapeig.graph.search.exact import COORDINATES
from torch_lapeig.methods.module import Fits, like_given, shape_of
from torch_lapeig.methods.on_graph import GRAPH_STATE, OnGraph, affinities_of_new, fitted_graph
from torch_lapeig.support import checks, precision
from torch_lapeig.support.fitted import State

Own = TypeVar("Own", bound="SemiSupervised")
Unreached = Literal["nearest"] | None
ClassPrior = Literal["labels", "uniform"] | Sequence[float] | None

UNLABELLED = -1
GIVEN_STATE = ("train_targets", "train_filled", "train_axes")


class SemiSupervised(OnGraph):
    """Contract of methods that carry labels of a few nodes of a graph to all its nodes, and to new points.

    ``forward(x, labels)`` returns scores with gradients to labels, points and the parameters of the weighting.
    ``fit(x, labels)`` keeps the scores of one set, and ``predict()`` returns its labels; ``transform`` and ``predict``
    return scores and labels of new points. Points are one set ``(N, D)`` or a batch ``(B, N, D)`` with a mask; with
    ``Precomputed("affinity")`` affinities or a `Graph` take their place. Systems are solved in float64.

    Labels are int64, ``(N,)`` or ``(B, N)``, counted from 0, with −1 for an unlabelled node. Or they are soft:
    ``(N, C)`` or ``(B, N, C)``, floating and non-negative, with a row of zeros for an unlabelled node; gradients flow
    to the other rows.

    A node that no path joins to a label has scores of zero and the label −1, with a `GraphWarning`. So has a new point
    if all its neighbours are such nodes. With ``unreached="nearest"`` such points have the label of the nearest
    labelled point, by the metric of the graph.

    **Numbers** take the way of labels: ``targets`` of any sign, ``(N,)`` or ``(N, m)``, known where ``known`` is True,
    or not NaN. The results of all calls have their shape, and ``scores_`` ``(N, m)``; ``n_classes`` and ``class_prior``
    are of classes only. Each component of the graph needs a known number, unless ``unreached="nearest"``.

    A method defines ``_solved`` and ``_extended``.

    Args:
        neighbors: rule of the graph, `KNN`, `Radius` or ``Precomputed("affinity")``.
        weights: weighting of the edges, see `LabelSpreading`; None with ``Precomputed``.
        n_classes: number C of classes, ≥ 1, or None: the largest label plus one, or the number of columns of soft
            labels.
        unreached: None, or ``"nearest"``: see above; only of points. The row of scores is the row of the label, 1 at
            its class. On tables this raises the accuracy on average.
        class_prior: shares of the classes in the scores, or None, see `LabelSpreading`.

    >>> from torch_lapeig import KNN, HarmonicFunction
    >>> x = torch.tensor([[0.0], [1.0], [2.0], [9.0], [10.0], [11.0]])
    >>> model = HarmonicFunction(KNN(3)).fit(x, torch.tensor([0, -1, -1, -1, -1, 1]))
    >>> model.predict().tolist(), model.predict(torch.tensor([[10.5]])).tolist()
    ([0, 0, 0, 1, 1, 1], [1])
    """

    FITTED: ClassVar[tuple[str, ...]] = ("scores_", "train_points", *GRAPH_STATE, *GIVEN_STATE)

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
        self.class_prior: str | tuple[float, ...] | None
        if isinstance(class_prior, str):
            checks.check_choice(class_prior, "class_prior", ("labels", "uniform"))
        if class_prior is None or isinstance(class_prior, str):
            self.class_prior = class_prior
            return
        try:
            self.class_prior = shares = tuple(float(share) for share in class_prior)
        except (TypeError, ValueError):
            expected = '"labels", "uniform" or a share for each class'
            raise TypeError(f"class_prior must be {expected}, got {checks.describe(class_prior)}") from None
        if not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:  # rounding
            got = f"{shares} with sum {sum(shares)}"
            raise ValueError(f"class_prior must hold positive numbers that sum to 1, got {got}")

    @precision.full_precision
    def forward(
        self,
        x: Tensor | Graph,
        labels: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        targets: Tensor | None = None,
        known: Tensor | None = None,
    ) -> Tensor:
        """Return scores ``(N, C)`` or ``(B, N, C)`` of all nodes, with gradients, in the dtype of ``x``.

        Args:
            x: points ``(N, D)`` or ``(B, N, D)``, floating; affinities or a `Graph` with ``Precomputed("affinity")``.
            labels: ``(N,)`` or ``(B, N)``, or soft labels with one more axis; see the class.
            mask: bool ``(N,)`` or ``(B, N)``, False for padding, which may hold any numbers; its scores are zero. None
                with a `Graph`, which has its own mask.
            targets: in place of labels floating numbers ``(N,)``, ``(N, m)``, ``(B, N)`` or ``(B, N, m)``.
            known: bool ``(N,)`` or ``(B, N)``: nodes whose targets count; default: those that are not NaN.
        """
        points, mask = self._checked(checks.half_to_float32(x), mask)
        given, of_batch = self._given(labels, points, mask, targets, known), len(shape_of(points)) > 1
        scores = self._carried(self._graph(points, mask), points, given, fill=of_batch)["scores_"]
        return like_given(given.shaped(scores), x)

    @torch.no_grad()
    @precision.full_precision
    def fit(
        self: Own,
        x: Tensor | Graph,
        labels: Tensor | None = None,
        *,
        targets: Tensor | None = None,
        known: Tensor | None = None,
    ) -> Own:
        """Keep the scores of one set of points ``(N, D)`` and what new points need; return the module; no batches."""
        points, mask = self._checked_one(x)
        self._keep(self._fit_points(points, self._given(labels, points, mask, targets, known), fill=False), x)
        return self

    def transform(self, x_new: Tensor) -> Tensor:
        """Return scores ``(Q, C)`` of new points ``(Q, D)`` by the fit, or their numbers; see `EmbeddingModule`."""
        return self._rows(x_new)

    def _rows(self, x_new: Tensor | None) -> Tensor:
        self.check_fitted()
        scores = self.scores_ if x_new is None else super().transform(x_new)
        return scores.squeeze(-1) if self.train_axes is not None and self.train_axes == 0 else scores

    @torch.no_grad()
    def predict(self, x_new: Tensor | None = None) -> Tensor:
        """Return labels int64 ``(N,)`` of the fitted nodes, or ``(Q,)`` of new points: the class of the largest score.

        The label is −1 if all scores are zero. Of a fit of targets return the numbers. Raise as ``transform``.
        """
        scores = self._rows(x_new)
        if self.train_axes is not None:
            return scores
        return torch.where((scores != 0).any(-1), scores.argmax(-1), UNLABELLED)

    def predict_proba(self, x_new: Tensor | None = None) -> Tensor:
        """Return each class's share in the scores, ``(N, C)`` of the fitted nodes or ``(Q, C)`` of new points.

        Rows sum to 1, or are zero where no label reaches. Scores below zero, of `EigenmapsRegression`, count as zero.
        Raise as ``transform``; ValueError: a fit of targets.
        """
        scores = self._rows(x_new).clamp_min(0)
        if self.train_axes is not None:
            raise ValueError("predict_proba must be of a fit of labels, got one of targets; use predict")
        total = scores.sum(-1, keepdim=True)
        return scores / torch.where(total > 0, total, 1)

    @precision.full_precision
    def out_of_sample(
        self,
        x: Tensor | Graph,
        labels: Tensor | None,
        x_new: Tensor,
        *,
        mask: Tensor | None = None,
        targets: Tensor | None = None,
        known: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return scores of points and of new points, as ``fit`` and ``transform`` do, but keep no fit.

        Arguments are those of ``forward``, ``x_new`` new points ``(Q, D)`` or ``(B, Q, D)``, or their affinities
        ``(Q, N)`` or ``(B, Q, N)``; results are ``(N, C)`` and ``(Q, C)``, with a batch axis if ``x`` has one.
        Gradients flow to points, new points, labels, and the parameters of the weighting.
        """
        points, mask = self._checked(checks.half_to_float32(x), mask)
        given = self._given(labels, points, mask, targets, known)
        rows, rows_new = self._with_new(x, points, x_new, self._fits(points, mask, given))
        return given.shaped(rows), given.shaped(rows_new)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        if prefix + "scores_" in state_dict:  # a fit of labels has no axes of targets
            others[2][:] = [name for name in others[2] if name != prefix + "train_axes"]

    def _given(self, labels: Any, x: Any, mask: Tensor | None, targets: Any, known: Tensor | None) -> Given:
        like, shape = x.weight if isinstance(x, Graph) else x, shape_of(x)
        values = {"labels": labels, "targets": targets, "known": known}
        names = [name for name, value in values.items() if value is not None]
        if names not in (["labels"], ["targets"], ["targets", "known"]):
            raise TypeError(f"x must come with labels, or targets and maybe known, got {' and '.join(names) or 'none'}")
        for name in names:
            checks.check_tensor(values[name], name)
            checks.check_same_device(values[name], name, like, "x")
        if targets is not None:
            given, none = _numbers(targets, known, shape, mask), "NaN or known=False"
        else:
            rows = _rows_of_labels(labels, shape, self.n_classes, mask)
            given, none = Given(rows, (rows.detach() > 0).any(-1), None), "−1" if labels.ndim == len(shape) else "zeros"
        if not given.known.any():
            raise ValueError(f"{names[0]} must hold at least one {names[0][:-1]}, got {none} for every node; give more")
        return given._replace(rows=given.rows.to(like.dtype))

    def _fits(self, x: Any, mask: Tensor | None, given: Given) -> Fits:
        n, of_batch = shape_of(x)[-1], len(shape_of(x)) > 1
        parts = zip(given.rows.reshape(-1, n, given.rows.shape[-1]), given.known.reshape(-1, n), strict=True)
        for (item, places), (rows, known) in zip(self._items(x, mask), parts, strict=True):
            at = slice(None) if places is None else places
            if places is not None and len(places) == 0:
                yield {"scores_": rows[at]}, places
            else:
                yield self._fit_points(item, Given(rows[at], known[at], given.axes), fill=of_batch), places

    def _fit_points(self, x: Tensor | Graph, given: Given, *, fill: bool) -> State:
        """Return scores of one set of points, and the tensors that new points need, by the names in ``FITTED``."""
        if isinstance(x, Graph) or len(x) >= 2:
            graph, state = fitted_graph(self.neighbors, self.weights, x)
        else:
            none = torch.zeros(2, 0, dtype=torch.int64, device=x.device)
            graph, state = Graph.from_edge_index(none, x[:0, 0], len(x)), {}
        state |= {} if given.axes is None else {"train_axes": torch.tensor(given.axes)}
        return state | self._carried(graph, x, given, fill=fill)

    def _carried(self, graph: Graph, x: Any, given: Given, *, fill: bool) -> State:
        """Return what `_solved` does, but points that no label reaches have the row of the nearest if asked for."""
        # Warn of nodes that no path joins to a label, unless they get such a row; without a target they are an error.
        check_graph(graph, "affinities", type(self))
        targets, labelled, axes = given
        parts = graph.connected_components().reshape(graph.batch_size, graph.num_nodes)
        number = parts.clamp_min(0)
        has_label = torch.zeros_like(number).scatter_reduce(1, number, labelled.reshape(number.shape).long(), "amax")
        reached = ((has_label.gather(1, number) > 0) & (parts >= 0)).reshape(graph.shape)
        valid = torch.ones_like(reached) if graph.mask is None else graph.mask
        lost = valid & ~reached & ~(labelled.any(-1, keepdim=True) & (self.unreached == "nearest"))
        if lost.any():
            those = f"{int(lost.sum())} of {int(valid.sum())} nodes lie in components of the graph without any"
            way_out = 'use more neighbours or a larger bandwidth, or of points unreached="nearest" with KNN(k)'
            if axes is not None:
                raise ValueError(f"targets must be known in each component, but {those}; know more of them, {way_out}")
            advice = f"label a node of each component, {way_out}"
            checks.warn(f"{those} label: their scores are zero and predict gives −1; {advice}", checks.GraphWarning)
        found = self._solved(graph, targets.double(), labelled, reached, fill=fill)
        found |= _of_classes(found, targets, self.class_prior) if axes is None else {}
        found = {name: value.to(targets.dtype) for name, value in found.items()}
        if self.unreached is None:
            return found
        scores = found["scores_"].clone()
        empty = valid & ~(scores.detach().any(-1) if axes is None else reached)
        for at in itertools.product(*map(range, scores.shape[:-2])):
            places, known = empty[at], labelled[at]
            if places.any() and known.any():
                rows = self._of_nearest(x[at][places], x[at][known], targets[at][known])
                scores[at] = scores[at].index_put((places,), rows)
        kept = targets if axes is None else torch.where(labelled[..., None], targets, torch.nan)  # 0 may be known
        return found | {"scores_": scores, "train_targets": kept, "train_filled": empty}

    def _of_nearest(self, x: Tensor, points: Tensor, rows: Tensor) -> Tensor:
        """Return the row ``(Q, C)`` of the nearest of some points, for each of ``x`` ``(Q, D)``."""
        metric: Any = getattr(self.neighbors, "metric", "euclidean")
        if metric not in COORDINATES:
            return rows[distances(metric, x.detach(), points.detach()).argmin(1)]
        return rows[nearest_neighbors(points.detach(), 1, x.detach(), metric=metric).indices[:, 0]]

    def _extend(self, x: Tensor, state: State) -> Tensor:
        if self.unreached is None:
            return super()._extend(x, state)
        filled, targets, scores = state["train_filled"], state["train_targets"], state["scores_"]
        if "train_axes" in state:
            new, known = affinities_of_new(self.neighbors, self.weights, x, state), ~targets.isnan().any(-1)
            empty, rows = new.query[~filled[new.point]].bincount(minlength=len(x)) == 0, self._extended(new, state)
        else:
            rows = super()._extend(x, state | {"scores_": torch.where(filled[:, None], 0, scores)})
            empty, known = ~rows.detach().any(-1), targets.any(-1)
        if not empty.any() or not known.any():
            return rows
        return rows.index_put((empty,), self._of_nearest(x[empty], state["train_points"][known], targets[known]))

    @abstractmethod
    def _solved(self, graph: Graph, targets: Tensor, labelled: Tensor, reached: Tensor, *, fill: bool) -> State:
        """Return ``scores_`` and the state for `_extended`; with ``fill`` a graph of a batch may be too small."""


class Given(NamedTuple):
    """Labels or targets of nodes."""

    rows: Tensor  # (..., N, C), zeros where there are none
    known: Tensor  # bool (..., N), False for padding
    axes: int | None  # of the target of a node: 0 for a number, 1 for a row; None for labels

    def shaped(self, rows: Tensor) -> Tensor:
        """Return rows ``(..., m)`` with as many axes for a node as the targets have."""
        return rows.squeeze(-1) if self.axes == 0 else rows


def _numbers(targets: Tensor, known: Tensor | None, shape: tuple[int, ...], mask: Tensor | None) -> Given:
    targets = checks.half_to_float32(targets)
    checks.check_floating(targets, "targets")
    axes = targets.ndim - len(shape)
    if tuple(targets.shape[: len(shape)]) != shape or axes not in (0, 1) or targets.numel() == 0:
        expected = f"{shape} or {(*shape, 'm')}"
        raise ValueError(f"targets must have shape {expected}, numbers for each node, got {tuple(targets.shape)}")
    rows = targets.reshape(*shape, -1)
    if known is None:
        known = ~rows.detach().isnan().all(-1)
    checks.check_mask(known, rows, "known")
    known = known if mask is None else known & mask
    rows = torch.where(known[..., None], rows, 0)
    checks.check_finite(rows, "targets")
    return Given(rows, known, axes)


def _rows_of_labels(labels: Tensor, shape: tuple[int, ...], n_classes: int | None, mask: Tensor | None) -> Tensor:
    if labels.ndim == len(shape) + 1:
        labels = checks.half_to_float32(labels)
        if labels.shape[-1] == 1 and not labels.is_floating_point():
            raise ValueError(f"labels must have shape {shape}, got {tuple(labels.shape)}; use labels.squeeze(-1)")
        checks.check_floating(labels, "labels")
        expected = (*shape, n_classes or "C")
        if tuple(labels.shape) != (*shape, n_classes or labels.shape[-1]) or labels.shape[-1] == 0:
            raise ValueError(f"soft labels must have shape {expected}, a row for each node, got {tuple(labels.shape)}")
        labels = labels if mask is None else torch.where(mask[..., None], labels, 0)
        checks.check_finite(labels, "labels")
        checks.check_non_negative(labels, "labels")
        return labels
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise TypeError(
            f"labels must be integers, −1 for none, or soft, of shape {(*shape, 'C')}, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}; to propagate numbers use targets=labels, float, with NaN for none"
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


def _of_classes(found: State, targets: Tensor, class_prior: str | tuple[float, ...] | None) -> State:
    """Return the tensors of a fit with the class prior, and without rows that underflow in the dtype of the targets."""
    scores, classes, source = found["scores_"], targets.shape[-1], State()
    if class_prior is not None:
        # Zhu et al. sum over nodes without a label. This sum is over all nodes, so that a class whose nodes are nearly
        # all labelled does not have to take others.
        if class_prior == "labels":
            share = targets.double().sum(-2, keepdim=True) + 1
            share = share / share.sum(-1, keepdim=True)
        else:
            shares = [1 / classes] * classes if class_prior == "uniform" else class_prior
            if len(shares) != classes:
                raise ValueError(f"class_prior must have a share for each of {classes} classes, got {len(shares)}")
            share = scores.new_tensor(shares)
        reached = (scores.detach() != 0).any(-1).sum(-1)[..., None, None]
        mass = scores.sum(-2, keepdim=True)
        factor = share * reached / torch.where(mass > 0, mass, 1)  # a class without labels has no score to scale
        scores, source = scores * factor, {"train_source": found["train_source"] * factor}
    # Smaller rows are scaled up as a whole.
    info, largest = torch.finfo(targets.dtype), scores.detach().amax(-1, keepdim=True)
    is_tiny = (largest > 0) & (largest < info.tiny / info.eps)
    growth = torch.where(is_tiny, info.tiny / info.eps / torch.where(is_tiny, largest, 1), 1)
    return source | {"scores_": scores * growth}
