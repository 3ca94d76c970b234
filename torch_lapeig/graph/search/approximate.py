"""Approximate neighbours by inverted lists of faiss (extra ``ann``), with a measured recall.

Points are divided into cells, and a query is compared with the points of the nearest cells. The number of cells grows
until the recall of a sample of queries, against their true neighbours, exceeds the requested recall by two standard
errors. Then all queries are searched. The reported recall is measured on another sample, which had no part in the
choice. Candidates are measured again by direct differences, so that distances and their order are exact.

If so many cells would be needed that the exact search computes fewer distances, the exact search is done instead.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.graph.search.exact import Nearest, Sets, nearest_of_candidates
from torch_lapeig.support import checks
from torch_lapeig.support.extras import needed
from torch_lapeig.support.tuning import rows_of_block

# Queries in each of two samples: with k = 10, the error of a recall of 99 % is about 0.2 %.
SAMPLE = 400
# Cells over the root of the number of points; and the cost of a distance in a list over a distance of the exact search.
# 15 neighbours of 100,000 × 50 points in 100 clusters at a recall of 0.99 took 7.9 s with 1 √N cells, 5.9 s with 2 √N,
# 6.9 s with 4 √N; the exact search took 25 s, and each hundredth of the points that queries were compared with 3 s.
CELLS, SCANNED = 3, 12
# Points of each cell from which its centre is learnt.
CELL_POINTS = 64

ExactSearch = Callable[[Tensor], Nearest]

logger = logging.getLogger("torch_lapeig")


def approximate_neighbors(sets: Sets, k: int, recall: float, exact: ExactSearch) -> tuple[Nearest, float]:
    """Return neighbours ``(Q, k)`` in one set, and the measured share of true ones; ``exact`` finds these."""
    faiss = needed("faiss", "approximate search needs faiss", "ann")  # slow to import
    valid, every = sets.valid[0], torch.arange(sets.queries.shape[1], device=sets.queries.device)
    asked = valid.nonzero().flatten() if sets.itself else every
    sample = asked[torch.linspace(0, len(asked) - 1, min(2 * SAMPLE, len(asked)), device=asked.device).long()]
    count = int(valid.sum())
    cells = int(CELLS * math.sqrt(count))
    learning = cells * (10 * CELL_POINTS * cells + count)
    if learning + len(asked) * cells < len(asked) * count:
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(torch.get_num_threads())
        try:
            index = _Index(faiss, sets, k, cells)
            chosen, measured = sample[::2], sample[1::2]
            if index.set_cells(recall, chosen, exact):
                found = index.search(every, exact)
                share = _recall(found.squared_distances[measured], index.farthest(measured, exact)).mean().item()
                lists = index.lists
                logger.info(
                    "faiss found %.2f %% of %d neighbours in %d of %d cells", 100 * share, k, lists.nprobe, lists.nlist
                )
                if share < recall:
                    those = f"the true neighbours of a sample of {len(measured)} queries, less than recall={recall}"
                    finding = f"the approximate search found {share:.2%} of {those}"
                    checks.warn(f"{finding}; use the exact search, recall=1", checks.ConvergenceWarning)
                return found, share
        finally:
            faiss.omp_set_num_threads(threads)
    logger.info("exact search: it costs less than an approximate one with a recall of %g", recall)
    return exact(every), 1.0


class _Index:
    """Inverted lists of the valid points, on the CPU and in float32, whatever device and dtype the points have."""

    def __init__(self, faiss: Any, sets: Sets, k: int, cells: int) -> None:
        (self.points,), (self.queries,), (valid,), self.itself = sets
        self.k, self.numbers, d = k, valid.nonzero().flatten(), sets.points.shape[2]
        base = self.points[self.numbers]
        # Centred and scaled, points far from the origin or in tiny units are resolved by float32.
        self.centre = base.mean(0)
        self.scale = checks.power_of_two(base - self.centre, (0, 1))
        self.lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, cells)
        self.lists.cp.max_points_per_centroid, self.lists.cp.niter = CELL_POINTS, 10
        base = self._for_faiss(base)
        self.lists.train(base)
        self.lists.add(base)
        sizes = torch.tensor([self.lists.invlists.list_size(cell) for cell in range(cells)], dtype=torch.float64)
        self.points_of_cell = float(sizes.square().sum() / sizes.sum())  # mean over points of the size of their cell

    def set_cells(self, recall: float, rows: Tensor, exact: ExactSearch) -> bool:
        """Set the number of cells to search for a recall on some queries; False if the exact search costs less."""
        farthest, cells = self.farthest(rows, exact), 2.0
        while SCANNED * int(cells) * self.points_of_cell + self.lists.nlist < len(self.numbers):
            self.lists.nprobe = int(cells)
            shares = _recall(self.search(rows, exact).squared_distances, farthest)
            if shares.mean() - 2 * shares.std() / math.sqrt(len(rows)) >= recall:
                return True
            cells = max(cells + 1, 1.25 * cells)
        return False

    def farthest(self, rows: Tensor, exact: ExactSearch) -> Tensor:
        """Return the squared distance ``(R, 1)`` of some queries to the k-th true neighbour, by direct differences."""
        true = exact(rows).indices
        missing = torch.zeros_like(true, dtype=torch.bool)
        found = nearest_of_candidates(self.queries[rows], self.points[true], true, missing, self.k)
        return found.squared_distances[:, -1:]

    def search(self, rows: Tensor, exact: ExactSearch) -> Nearest:
        """Return the neighbours ``(R, k)`` of some queries, exact ones where the cells hold fewer than k points."""
        spare = min(self.k + self.itself + 5, len(self.numbers))  # faiss ranks in float32: 5 more are measured again
        block = rows_of_block(spare * (2 * self.points.shape[1] * self.points.element_size() + 32), rows.device)
        indices = torch.empty(len(rows), self.k, dtype=torch.int64, device=rows.device)
        distances = self.points.new_empty(len(rows), self.k)
        pieces = rows.split(rows_of_block(8 * self.points.shape[1], rows.device))
        cells = [self.lists.quantizer.search(self._for_faiss(self.queries[piece]), 1)[1][:, 0] for piece in pieces]
        # Go by cells, so that the data of one query is in the cache for the next.
        for part in torch.from_numpy(np.concatenate(cells)).to(rows.device).argsort().split(block):
            indices[part], distances[part] = self._search_block(rows[part], spare)
        lacking = distances[:, -1].isinf().nonzero().flatten()
        if len(lacking):
            indices[lacking], distances[lacking] = exact(rows[lacking])
        return Nearest(indices, distances)

    def _search_block(self, rows: Tensor, spare: int) -> Nearest:
        raw = torch.from_numpy(self.lists.search(self._for_faiss(self.queries[rows]), spare)[1]).to(rows.device)
        numbers = self.numbers[raw.clamp_min(0)]
        missing = raw < 0
        if self.itself:
            missing |= numbers == rows[:, None]
        return nearest_of_candidates(self.queries[rows], self.points[numbers], numbers, missing, self.k)

    def _for_faiss(self, x: Tensor) -> Any:
        return ((x - self.centre) / self.scale).float().cpu().contiguous().numpy()


def _recall(distances: Tensor, farthest: Tensor) -> Tensor:
    """Return the share of true neighbours ``(R,)``; any of several points at the k-th distance counts."""
    return (distances <= farthest).double().mean(1)
