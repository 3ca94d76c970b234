"""Approximate neighbours by faiss (extra ``ann``): candidates of its index, measured again by direct differences."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import Tensor

from torch_lapeig._tuning import rows_of_block
from torch_lapeig.graph.distances import nearest_of_candidates, squared_distances

SPARE = 5  # candidates beyond k that are measured again: faiss ranks them in float32
SAMPLE = 200  # queries of which the true neighbours are searched too: of k = 10 they tell a recall of 99 % to 0.3 %
HNSW_POINTS = 10**6  # from here on inverted lists, which take less time and memory to build than a graph of neighbours

logger = logging.getLogger("torch_lapeig")


def approximate_neighbors(
    points: Tensor, k: int, queries: Tensor, valid: Tensor, itself: bool
) -> tuple[Tensor, Tensor, float]:
    """Numbers and squared distances ``(B, Q, k)`` of neighbours, and the smallest estimated recall of the items.

    Args:
        points, queries, valid: ``(B, N, D)``, ``(B, Q, D)`` and bool ``(B, N)``; each item is searched on its own.
        itself: the queries are the points, and none is its own neighbour.

    Raises:
        ImportError: faiss is not installed.
    """
    items = zip(points, queries, valid, strict=True)
    found = [_search_item(of_item, k, asked, there, itself) for of_item, asked, there in items]
    indices, distances, recalls = zip(*found, strict=True)
    return torch.stack(indices), torch.stack(distances), min(recalls)


def _search_item(points: Tensor, k: int, queries: Tensor, valid: Tensor, itself: bool) -> tuple[Tensor, Tensor, float]:
    """One item. The index is built on the CPU in float32, whatever the device of the points."""
    index, numbers = _index_of(points, valid)
    spare = min(k + itself + SPARE, len(numbers))
    raw = torch.from_numpy(index.search(queries.float().cpu().contiguous().numpy(), spare)[1]).to(points.device)
    candidates = torch.where(raw < 0, -1, numbers[raw.clamp_min(0)])
    own = torch.arange(len(queries), device=points.device)
    missing = candidates < 0
    if itself:
        missing |= candidates == own[:, None]
    # Each candidate is gathered once, and its distances are ranked.
    rows = rows_of_block(spare * (points.shape[1] * points.element_size() + 32), points.device)
    parts = []
    for block in own.split(rows):
        near = points[candidates[block].clamp_min(0)]
        parts.append(nearest_of_candidates(queries[block], near, candidates[block], missing[block], k))
    indices, distances = (torch.cat(p) for p in zip(*parts, strict=True))
    # Where the index gave fewer than k, all points are measured.
    for row in distances[:, -1].isinf().nonzero().flatten().tolist():
        indices[row], distances[row] = _nearest_to(points, queries[row], valid, row if itself else None, k)
    recall = _estimate_recall(points, queries, valid, itself, indices)
    logger.info("faiss %s found %.2f %% of %d neighbours (sample)", type(index).__name__, 100 * recall, k)
    return indices, distances, recall


def _index_of(points: Tensor, valid: Tensor) -> tuple[Any, Tensor]:
    """The trained index of the valid points, and the number of each of its entries."""
    try:
        import faiss  # an extra, and slow to import
    except ImportError as error:
        raise ImportError('backend="faiss" needs faiss; pip install "torch-lapeig[ann]"') from error
    numbers = valid.nonzero().flatten()
    base = points[numbers].float().cpu().contiguous().numpy()
    index = choose_index(faiss, len(base), base.shape[1])
    if not index.is_trained:
        index.train(base)
    index.add(base)
    return index, numbers


def choose_index(faiss: Any, n: int, d: int) -> Any:
    """HNSW for few points, inverted lists of about √n cells for many; the settings aim at a recall above 99 %."""
    if n < HNSW_POINTS:
        index = faiss.IndexHNSWFlat(d, 32)
        index.hnsw.efConstruction, index.hnsw.efSearch = 80, 96
        return index
    cells = int(4 * math.sqrt(n))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, cells)
    index.nprobe = max(16, cells // 64)
    return index


def _nearest_to(points: Tensor, query: Tensor, valid: Tensor, own: int | None, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of all points to one query by direct differences, ties by number; ``own`` is not one of them."""
    distances = squared_distances(query[None], points)[0].masked_fill(~valid, torch.inf)
    if own is not None:
        distances[own] = torch.inf
    farthest = distances.kthvalue(k).values
    within = (distances <= farthest).nonzero().flatten()
    order = distances[within].argsort(stable=True)[:k]
    return within[order], distances[within][order]


def _estimate_recall(points: Tensor, queries: Tensor, valid: Tensor, itself: bool, indices: Tensor) -> float:
    """Share of true neighbours among those found ``(Q, k)``, on a sample of queries spread over all."""
    k = indices.shape[1]
    sample = torch.linspace(0, len(queries) - 1, min(SAMPLE, len(queries)), device=points.device).long()
    hits = 0
    for row in sample.tolist():
        true, _ = _nearest_to(points, queries[row], valid, row if itself else None, k)
        hits += int(torch.isin(indices[row], true).sum())
    return hits / (k * len(sample))
