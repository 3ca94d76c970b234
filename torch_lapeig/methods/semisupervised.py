"""The contract of methods that carry labels along a graph: points and a few labels to scores, with gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from torch_lapeig import _checks
from torch_lapeig._fitted import FittedModule, State, check_like, in_blocks
from torch_lapeig.graph import Graph, Precomputed
from torch_lapeig.graph.graph import check_whole
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.weighted import Rule, check_rule_and_weights, weighted_graph
from torch_lapeig.graph.weights import Weighting
from torch_lapeig.methods.module import check_given
from torch_lapeig.methods.newpoints import GRAPH_STATE, NewAffinities, affinities_of_new, fitted_graph, width_of_new

Own = TypeVar("Own", bound="SemiSupervised")

UNLABELLED = -1


class SemiSupervised(FittedModule):
    """What all methods do that carry labels of a few nodes of a graph to all its nodes, and to new points.

    ``forward(x, labels)`` gives scores with gradients to labels, points, and what the weighting learns; ``fit(x,
    labels)`` keeps those of one set, of which ``predict()`` gives the labels; ``transform`` and ``predict`` of new
    points give theirs. Points are one set ``(N, D)`` or a batch ``(B, N, D)`` with a mask; affinities or a `Graph` take
    their place with ``Precomputed("affinity")``. Systems are solved in float64, whatever the dtype.

    Labels are int64, ``(N,)`` or ``(B, N)``, from 0 on, −1 for a node without one. Or they are soft: ``(N, C)`` or
    ``(B, N, C)``, floating and non-negative, a row of zeros for a node without one; gradients flow to the other rows.

    A node that no path joins to a label has scores of zero, and the label −1, with a `GraphWarning`: the graph says
    nothing of it, and the prior of the classes, or the first class, would look like an answer. So has a new point whose
    neighbours are all such.

    A method fills in ``_solved`` and ``_extended``.

    >>> from torch_lapeig import KNN, HarmonicFunction
    >>> x = torch.tensor([[0.0], [1.0], [2.0], [9.0], [10.0], [11.0]])
    >>> model = HarmonicFunction(KNN(3)).fit(x, torch.tensor([0, -1, -1, -1, -1, 1]))
    >>> isinstance(model, SemiSupervised), model.predict().tolist(), model.predict(torch.tensor([[10.5]])).tolist()
    (True, [0, 0, 0, 1, 1, 1], [1])
    """

    FITTED: ClassVar[tuple[str, ...]] = ("scores_", *GRAPH_STATE)
    CONFIGURATION: ClassVar[tuple[str, ...]] = ("n_classes", "neighbors", "weights")
    scores_: Tensor

    def __init__(self, neighbors: Rule, weights: Weighting | None, n_classes: int | None) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.weights = check_rule_and_weights(neighbors, weights)
        self.n_classes = None if n_classes is None else _checks.check_width(n_classes, "n_classes")

    @_checks.full_precision
    def forward(self, x: Tensor | Graph, labels: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Scores ``(N, C)`` or ``(B, N, C)`` of all nodes, with gradients, in the dtype of ``x``.

        Args:
            x: points ``(N, D)`` or ``(B, N, D)``, floating; affinities or a `Graph` with ``Precomputed("affinity")``.
            labels: ``(N,)`` or ``(B, N)``, or soft ones with an axis more; see the class.
            mask: bool ``(N,)`` or ``(B, N)``, False for padding, which may hold anything; its scores are zero. None
                with a `Graph`, which carries its own.

        Raises:
            TypeError: labels that are no integers where they have no axis of classes. ValueError: no label at all,
                labels below −1 or not below ``n_classes``, of another shape, soft ones that are not finite and ≥ 0;
                points that no method takes.
        """
        graph = self._graph(_checks.single(x), mask)
        targets, labelled = self._targets(labels, graph.shape, graph.mask, graph.weight)
        return _like(self._solved(graph, targets, labelled, fill=len(graph.shape) > 1)["scores_"], x)

    @torch.no_grad()
    @_checks.full_precision
    def fit(self: Own, x: Tensor | Graph, labels: Tensor) -> Own:
        """Keep the scores of one set of points ``(N, D)`` and what new points need. Returns the module.

        Raises:
            TypeError, ValueError: a batch, of which only one set could be kept, and what ``forward`` raises.
        """
        x = _checks.single(x)
        shape = tuple(x.shape) if isinstance(x, Graph) else tuple(getattr(x, "shape", ()))[:-1]
        if len(shape) > 1:
            raise ValueError(
                f"fit takes one set of points, got a batch of shape {shape}; fit the sets one by one, each in a module "
                "of its own, or call forward or out_of_sample, which take batches"
            )
        self._check(x, None)
        x = Graph.from_dense(x) if self._is_given and not isinstance(x, Graph) else x
        like = x.weight if isinstance(x, Graph) else x
        own_mask = x.mask if isinstance(x, Graph) else None
        self._keep(self._fit_points(x, *self._targets(labels, shape, own_mask, like), fill=False), x)
        return self

    @torch.no_grad()
    def predict(self, x_new: Tensor | None = None) -> Tensor:
        """Labels int64 ``(N,)`` of the fitted nodes, or ``(Q,)`` of new points: the class of the largest score.

        −1 where all scores are zero.

        Raises:
            RuntimeError, TypeError, ValueError: see ``transform``.
        """
        self.check_fitted()
        return labels_of(self.scores_ if x_new is None else self.transform(x_new))

    @_checks.full_precision
    def transform(self, x_new: Tensor) -> Tensor:
        """Scores ``(Q, C)`` of new points ``(Q, D)`` given those of the fitted ones, with gradients to them.

        Works in blocks of new points. A fitted point gets its own scores. With ``Precomputed("affinity")`` ``x_new``
        holds affinities to the fitted nodes, ``(Q, N)``, of points that are none of these.

        Raises:
            RuntimeError: not fitted. TypeError, ValueError: not finite, or not of the dtype or dimension of the fitted
                points.
        """
        self.check_fitted()
        state = {name: _checks.single(value) for name, value in self._fitted().items()}
        return _like(self._extend_in_blocks(_checks.single(x_new), state), x_new)

    @_checks.full_precision
    def out_of_sample(
        self, x: Tensor | Graph, labels: Tensor, x_new: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scores of points and of new points given these: ``fit`` and ``transform``, but nothing is kept.

        Gradients flow to both, to the labels, and to what the weighting learns.

        Args:
            x, labels, mask: as for ``forward``.
            x_new: ``(Q, D)`` or ``(B, Q, D)``; affinities ``(Q, N)`` or ``(B, Q, N)`` with ``Precomputed``.

        Returns:
            ``(N, C)`` and ``(Q, C)``, or batches of such.

        Raises:
            TypeError, ValueError: as ``fit`` and ``transform``; no new points for each item of a batch.
        """
        given = self._check(_checks.single(x), mask)
        shape = tuple(given.shape) if isinstance(given, Graph) else tuple(given.shape[:-1])
        mask = given.mask if isinstance(given, Graph) else mask
        _checks.check_tensor(x_new, "x_new")
        if x_new.ndim != len(shape) + 1 or x_new.shape[:-2] != shape[:-1]:
            expected = ", ".join(map(str, (*shape[:-1], "Q", shape[-1] if self._is_given else "D")))
            raise ValueError(f"x_new must have shape ({expected}) to go with the points, got {tuple(x_new.shape)}")
        like = given.weight if isinstance(given, Graph) else given
        targets, labelled = self._targets(labels, shape, mask, like)
        rows, rows_new = [], []
        news = iter(_checks.single(x_new).reshape(-1, *x_new.shape[-2:]))
        for item, places, of_item in _items(given, shape, mask, targets, labelled):
            new = next(news)
            new = new[:, places] if self._is_given else new
            state = self._fit_points(item, *of_item, fill=len(shape) > 1) if len(places) else {"scores_": of_item[0]}
            scores = state["scores_"]
            rows.append(scores.new_zeros(shape[-1], scores.shape[-1]).index_copy(0, places, scores))
            if len(places) > 1:
                rows_new.append(self._extend_in_blocks(new, state))
            else:  # nothing that new points could be near to
                rows_new.append(0 * new.sum() + new.new_zeros(len(new), scores.shape[-1]))
        joined = [torch.stack(part) if len(shape) > 1 else part[0] for part in (rows, rows_new)]
        return _like(joined[0], x), _like(joined[1], x_new)

    @property
    def _is_given(self) -> bool:
        """Whether affinities take the place of points."""
        return isinstance(self.neighbors, Precomputed)

    def _check(self, x: Any, mask: Tensor | None) -> Any:
        """Checked points, or the graph of what is given."""
        if isinstance(x, Graph):
            check_whole(x, "x")
        if self._is_given:
            return weighted_graph(self.neighbors, None, x, mask)
        if isinstance(x, Graph):
            raise TypeError('x must be points, got a Graph; use neighbors=Precomputed("affinity")')
        check_given(x, mask)
        return x

    def _graph(self, x: Any, mask: Tensor | None) -> Graph:
        """The weighted graph of checked points, or the one given."""
        x = self._check(x, mask)
        return x if isinstance(x, Graph) else weighted_graph(self.neighbors, self.weights, x, mask)

    def _targets(self, labels: Any, shape: tuple[int, ...], mask: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
        """Labels as rows ``(..., N, C)``, zeros for a node without one, and which nodes have one, ``(..., N)``."""
        targets, labelled = targets_of(labels, tuple(shape), self.n_classes, mask)
        if targets.device != like.device:
            raise ValueError(f"labels must be on the device of x, {like.device}, got {targets.device}")
        return targets.to(like.dtype), labelled

    def _fit_points(self, x: Tensor | Graph, targets: Tensor, labelled: Tensor, *, fill: bool) -> State:
        """Scores of one set of points, and all that new points need, by the names in ``FITTED``."""
        if isinstance(x, Graph):
            return self._solved(x, targets, labelled, fill=fill)
        if len(x) < 2:
            none = torch.zeros(0, dtype=torch.int64, device=x.device)
            graph = Graph._trusted(SparsePattern._trusted(none, none, (len(x),)), x[:0, 0])
            return self._solved(graph, targets, labelled, fill=fill)
        assert self.weights is not None
        graph, state = fitted_graph(self.neighbors, self.weights, x)
        return state | self._solved(graph, targets, labelled, fill=fill)

    def _extend_in_blocks(self, x: Tensor, state: State) -> Tensor:
        scores = state["scores_"]
        points = state.get("train_points")
        check_like(x, scores.new_empty(1, len(scores)) if points is None else points)

        def rows(block: Tensor) -> Tensor:
            return self._extended(affinities_of_new(self.neighbors, self.weights, block, state), len(block), state)

        return in_blocks(rows, x, width_of_new(scores, state))

    @abstractmethod
    def _solved(self, graph: Graph, targets: Tensor, labelled: Tensor, *, fill: bool) -> State:
        """``scores_`` of the nodes of a graph or a batch, and what `_extended` needs of one graph.

        With ``fill``, for items of a batch, a graph may be too small for the method; else that is an error.
        """

    @abstractmethod
    def _extended(self, new: NewAffinities, queries: int, state: State) -> Tensor:
        """The scores ``(Q, C)`` of a block of new points."""


def targets_of(
    labels: Any, shape: tuple[int, ...], n_classes: int | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Labels of nodes as rows ``(..., N, C)``, and which nodes have one, bool ``(..., N)``; see `SemiSupervised`.

    Labels of padding count as none, whatever they are.

    Raises:
        TypeError, ValueError: see `SemiSupervised.forward`.
    """
    _checks.check_tensor(labels, "labels")
    if labels.ndim == len(shape) + 1:
        return _soft_targets(labels, shape, n_classes, mask)
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise TypeError(
            f"labels must be integers, −1 for none, or soft ones of shape {(*shape, 'C')}, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}; use labels.long()"
        )
    if tuple(labels.shape) != shape:
        raise ValueError(f"labels must have shape {shape}, one for each node, got {tuple(labels.shape)}")
    labels = labels.long() if mask is None else labels.long().masked_fill(~mask, UNLABELLED)
    if (classes := _checks.check_classes(labels)) == 0:
        raise ValueError("labels must hold at least one label, got −1 for every node; label a node of each class")
    if (least := int(labels.min())) < UNLABELLED:
        raise ValueError(f"labels must be at least −1, which stands for none, got {least}")
    count = classes if n_classes is None else n_classes
    if classes > count:
        raise ValueError(f"labels must be smaller than n_classes={count}, got {classes - 1}; they are counted from 0")
    labelled = labels >= 0
    one_hot = torch.nn.functional.one_hot(labels.clamp_min(0), count) * labelled[..., None]
    return one_hot.to(torch.float64 if count else torch.float32), labelled


def _soft_targets(
    labels: Tensor, shape: tuple[int, ...], n_classes: int | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    labels = _checks.single(labels)
    _checks.check_floating(labels, "labels")
    classes = labels.shape[-1] if n_classes is None else n_classes
    if tuple(labels.shape) != (*shape, classes) or classes == 0:
        expected = (*shape, "C" if n_classes is None else n_classes)
        raise ValueError(f"soft labels must have shape {expected}, a row for each node, got {tuple(labels.shape)}")
    labels = labels if mask is None else torch.where(mask[..., None], labels, 0)
    _checks.check_finite(labels, "labels")
    _checks.check_non_negative(labels, "labels")
    labelled = (labels.detach() > 0).any(-1)
    if not labelled.any():
        raise ValueError("labels must hold at least one label, got zeros for every node; label a node of each class")
    return labels, labelled


def reached_by(graph: Graph, labelled: Tensor) -> Tensor:
    """Which nodes a path joins to a label, bool of the graph's shape; a `GraphWarning` tells of the others."""
    n, batch = graph.num_nodes, graph.batch_size
    parts = graph.connected_components().reshape(batch, n)
    number = parts.clamp_min(0) + n * torch.arange(batch, device=parts.device)[:, None]
    has_label = torch.zeros(batch * n, dtype=torch.bool, device=parts.device)
    has_label[number[labelled.reshape(batch, n)]] = True
    reached = (has_label[number] & (parts >= 0)).reshape(graph.shape)
    valid = torch.ones_like(reached) if graph.mask is None else graph.mask
    if (lost := valid & ~reached).any():
        _checks.warn(
            f"{int(lost.sum())} of {int(valid.sum())} nodes lie in components of the graph without any label: their "
            "scores are zero and predict gives −1; label a node of each component, or use more neighbours",
            _checks.GraphWarning,
        )
    return reached


def labels_of(scores: Tensor) -> Tensor:
    """The class of the largest score of each row, int64; −1 for a row of zeros."""
    return torch.where((scores != 0).any(-1), scores.argmax(-1), UNLABELLED)


def _items(
    x: Tensor | Graph, shape: tuple[int, ...], mask: Tensor | None, targets: Tensor, labelled: Tensor
) -> Iterator[tuple[Any, Tensor, tuple[Tensor, Tensor]]]:
    """Each item of a batch without its padding: its points or graph, their places, their labels."""
    n = shape[-1]
    everything = torch.arange(n, device=targets.device)
    for b in range(math.prod(shape[:-1])):
        places = everything if mask is None else everything[mask.reshape(-1, n)[b]]
        of_item = targets.reshape(-1, n, targets.shape[-1])[b][places], labelled.reshape(-1, n)[b][places]
        if isinstance(x, Graph):
            yield x.subgraph(places + b * n) if len(places) else x, places, of_item
        else:
            yield x.reshape(-1, *x.shape[-2:])[b][places], places, of_item


def _like(scores: Tensor, x: Any) -> Tensor:
    """Scores in half precision where ``x`` is."""
    return scores.to(x.dtype) if isinstance(x, Tensor) and x.dtype in _checks.HALVES else scores
