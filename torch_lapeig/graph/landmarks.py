"""Landmarks: a few points of a set, and the graph that all points of the set make between the landmarks.

Each of N points has shares in its r nearest landmarks, a row of Z ``(N, m)`` that sums to one. The affinity of two
points is W = Z Λ⁻¹ Zᵀ with Λ = diag(Zᵀ 1), so that every degree is 1. W is never formed: Zᵀ Z, affinities between the m
landmarks, has the same eigenvalues, and sums over points in any order (Liu, He & Chang, *Large graph construction for
scalable semi-supervised learning*, ICML 2010, section 3; Chen & Cai, *Large scale spectral clustering with
landmark-based representation*, AAAI 2011, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.graph.algebra import both_ways, sum_of_groups
from torch_lapeig.graph.graph import Graph
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.graph.search import exact
from torch_lapeig.graph.search.neighbors import nearest_neighbors
from torch_lapeig.graph.weights import NewEdges, Weighting
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import rows_of_block


class Shares(NamedTuple):
    """Shares of points in landmarks, both ``(Q, r)``, of sum one, or zero where no landmark of a point has weight."""

    landmark: Tensor
    share: Tensor

    def rows(self, of_landmarks: Tensor) -> Tensor:
        """Return Z Y ``(Q, k)`` of rows of landmarks ``(m, k)``."""
        columns = zip(self.landmark.unbind(1), self.share.unbind(1), strict=True)
        return sum((share[:, None] * of_landmarks[landmark] for landmark, share in columns), of_landmarks[:0].sum(0))


class LandmarkSums(NamedTuple):
    """Upper triangle of Zᵀ Z over the points so far, by keys i·m + j with i ≤ j, ascending."""

    key: Tensor
    value: Tensor  # float64 whatever the dtype of the points, as a stream may have many of them
    m: int

    @classmethod
    def of_graph(cls, edge_index: Tensor, weight: Tensor, m: int) -> LandmarkSums:
        """Return the sums that ``graph`` was made of."""
        upper = edge_index[0] <= edge_index[1]
        row, col = edge_index[:, upper]
        return cls(row * m + col, weight[upper].double(), m)

    def add(self, shares: Shares, counts: Tensor | None = None) -> LandmarkSums:
        """Return the sums with more points, which count the mean of ``counts`` ``(m,)``; differentiable in shares."""
        r = shares.landmark.shape[1]
        first, second = torch.triu_indices(r, r, device=shares.landmark.device)
        rows = rows_of_block(64 * len(first), shares.landmark.device)
        key, value = self.key, self.value
        for landmark, share in zip(shares.landmark.split(rows), shares.share.split(rows), strict=True):
            landmark, order = landmark.sort(1)
            share = share.gather(1, order).double()
            more = (landmark[:, first] * self.m + landmark[:, second]).flatten()
            key, place = torch.cat([key, more]).unique(return_inverse=True)
            products = share[:, first] * share[:, second]
            if counts is not None:
                products = products * (share * counts[landmark]).sum(1, keepdim=True)
            value = sum_of_groups(torch.cat([value, products.flatten()]), place, len(key))
        return LandmarkSums(key, value, self.m)

    def graph(self, dtype: torch.dtype) -> Graph:
        """Return the graph of the m landmarks with the affinities Zᵀ Z, self loops included."""
        row, col = self.key // self.m, self.key % self.m
        off = (row != col).nonzero().flatten()
        key, order = torch.cat([self.key, col[off] * self.m + row[off]]).sort()
        weight = torch.cat([self.value, self.value[off]])[order].to(dtype)
        return Graph.trusted(SparsePattern.trusted(key // self.m, key % self.m, (self.m,), True), weight)


@dataclass(frozen=True)
class Landmarks:
    """Rule of `LaplacianEigenmaps` for very many points: each is joined to its nearest of m landmarks.

    The weighting weighs the edges between points and landmarks, as if these were points of the graph; the weights of a
    point, divided by their sum, are its shares in the landmarks. See the module for the affinities that this gives.

    Args:
        m: landmarks, at least 2; all points where there are fewer.
        r: landmarks that each point is joined to, from 2 to m.
        choose: ``"kmeans"``: means of groups of near points, by k-means in leading principal directions, which follow
            the density; ``"farthest"``: points each as far as possible from those before, which cover the set evenly,
            outliers first; ``"random"``: points at random, the fastest and the least accurate. They are chosen from a
            random sample of ten points for each landmark.
        metric: as for `KNN`.
        seed: of the random choices.

    >>> from torch_lapeig import LaplacianEigenmaps
    >>> x = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
    >>> model = LaplacianEigenmaps(2, Landmarks(50)).fit(x.double())
    >>> model.embedding_.shape, model.train_points.shape
    (torch.Size([500, 2]), torch.Size([50, 2]))
    """

    m: int = 1000
    r: int = 5
    choose: Literal["kmeans", "farthest", "random"] = "kmeans"
    metric: exact.Metric = "euclidean"
    seed: int = 0

    def __post_init__(self) -> None:
        checks.set_frozen(self, m=checks.check_count(self.m, "m", 2), r=checks.check_count(self.r, "r", 2))
        if self.r > self.m:
            raise ValueError(f"r must be at most m, got r={self.r} with m={self.m}")
        checks.check_choice(self.choose, "choose", ("kmeans", "farthest", "random"))
        checks.check_choice(self.metric, "metric", ("euclidean", "cosine"))
        checks.set_frozen(self, seed=checks.check_seed(self.seed))

    @property
    def sample_size(self) -> int:
        """Return how many points landmarks are chosen from, at most."""
        # Of the 10,000 digits of MNIST's test set and 1000 landmarks, all points gave 92.4 % right 5-NN labels, half of
        # them 91.4 %.
        return 10 * self.m

    def of_points(self, x: Tensor) -> Tensor:
        """Return landmarks ``(m, D)`` of points ``(N, D)``, fewer of fewer distinct points; differentiable.

        Which points make a landmark is chosen without gradients; it is their mean.
        """
        x = exact.measured(x, self.metric)
        with torch.no_grad():
            members, group, count = self._groups(x.detach())
        if count < 2:
            got = f"copies of one only, as the {min(len(x), self.sample_size)} that landmarks are chosen from"
            advice = "drop copies, or use a larger m"
            raise ValueError(f"x must hold at least two distinct points for Landmarks(m={self.m}), got {got}; {advice}")
        size = group.bincount(minlength=count).to(x.dtype)
        return sum_of_groups(x[members], group, count) / size[:, None]

    def _groups(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the points that make landmarks, the landmark of each, and the number of landmarks."""
        generator = torch.Generator().manual_seed(self.seed)
        members = torch.randperm(len(x), generator=generator)[: self.sample_size].to(x.device)
        sample = x[members]
        m = min(self.m, len(sample))
        if self.choose == "kmeans" and m < len(sample):
            number, group = _k_means(sample, m).unique(return_inverse=True)
            return members, group, len(number)
        chosen = _farthest(sample, m) if self.choose == "farthest" else torch.arange(m, device=x.device)
        # Without copies, which would share the points near them.
        distinct, number = sample[chosen].unique(dim=0, return_inverse=True)
        place = torch.arange(len(number), device=x.device)
        first = place[: len(distinct)].scatter_reduce(0, number, place, "amin", include_self=False)
        return members[chosen[first.sort().values]], place[: len(distinct)], len(distinct)

    def edges(self, x: Tensor, landmarks: Tensor) -> NewEdges:
        """Return the edges from points ``(Q, D)`` to their nearest landmarks ``(m, D)``, r of each, nearest first."""
        x = exact.measured(x, self.metric)
        r = min(self.r, len(landmarks))
        point = nearest_neighbors(landmarks.detach(), r, x.detach()).indices.flatten()
        query = torch.arange(len(x), device=x.device).repeat_interleave(r)
        squared_lengths = exact.differentiable_pair_distances(x, query, landmarks, point)
        return NewEdges(query, point, squared_lengths, torch.ones_like(squared_lengths), len(x))

    def state(self, weights: Weighting, x: Tensor, landmarks: Tensor, edges: NewEdges) -> Tensor:
        """Return the weighting's state of landmarks ``(m, s)``, given the graph that points and landmarks make."""
        total = len(x) + len(landmarks)
        row, col, _ = both_ways(edges.query, edges.point + len(x), total)
        ones = torch.ones_like(row, dtype=x.dtype)
        graph = Graph.trusted(SparsePattern.trusted(row, col, (total,), False), ones)
        return weights.state(torch.cat([exact.measured(x, self.metric), landmarks]), graph)[len(x) :]


def _k_means(x: Tensor, m: int) -> Tensor:
    """Return the group of each row ``(S,)`` after Lloyd steps from the first m rows, in leading directions."""
    rows = x / checks.power_of_two(x, (0, 1))  # so that no square overflows
    rows = rows - rows.mean(0)
    directions = 32  # three steps take 0.25 s of MNIST's test set, in all 784 dimensions 2 s
    if rows.shape[1] > directions:
        rows = rows @ exact.principal_directions(rows[exact.spread_rows(len(rows), 2048)], directions)
    centres = rows[:m]
    steps = 3  # five gave no more right labels
    for step in range(steps):
        group = nearest_neighbors(centres, 1, rows).indices[:, 0]
        if step < steps - 1:
            size = group.bincount(minlength=m)[:, None]
            centres = torch.where(size > 0, sum_of_groups(rows, group, m) / size.clamp_min(1), centres)
    return group


def _farthest(rows: Tensor, m: int) -> Tensor:
    """Return m rows, the first one, then each as far as possible from those before."""
    rows = rows / checks.power_of_two(rows, (0, 1))
    chosen, distance = [rows.new_zeros((), dtype=torch.int64)], rows.new_full((len(rows),), torch.inf)
    for _ in range(m - 1):
        distance = distance.minimum(exact.squared_distances(rows[chosen[-1]][None], rows)[0])
        chosen.append(distance.argmax())
    return torch.stack(chosen)
