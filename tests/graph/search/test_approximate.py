"""Approximate search through faiss: distances are exact, and the recall is measured, whatever it is."""

import sys

import pytest
import torch

from problems import DTYPES, every, points
from torch_lapeig import KNN, HeatKernel, knn_graph
from torch_lapeig.graph import nearest_neighbors
from torch_lapeig.graph.search import approximate
from torch_lapeig.support.checks import ConvergenceWarning

N, K = 2000, 10


@pytest.fixture
def cells(monkeypatch):
    """Few points, too, are put into cells, and looking into most of those counts as cheap."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(approximate, "CELLS", 0.5)
    monkeypatch.setattr(approximate, "SCANNED", 0.5)


@every(offset=[0, 1e8], dtype=DTYPES)
def test_recall_is_measured_and_distances_are_exact(dtype, offset, cells, caplog):
    x = points(N, 6, dtype=dtype) + (offset if dtype == torch.float64 else 0)
    with caplog.at_level("INFO", "torch_lapeig"):
        found = nearest_neighbors(x, K, recall=0.9)
    assert "cells" in caplog.text
    exact = nearest_neighbors(x, K)
    assert 0.9 <= found.recall < 1 == exact.recall
    share = (found.indices[:, :, None] == exact.indices[:, None]).any(-1).double().mean()
    assert abs(found.recall - share) < 0.02
    assert (found.indices != torch.arange(N)[:, None]).all()
    torch.testing.assert_close(found.squared_distances, (x[:, None] - x[found.indices]).square().sum(-1))
    assert (found.squared_distances.diff(dim=1) >= 0).all()


def test_a_known_recall_is_reported_as_such(cells, monkeypatch):
    """An index that hides the two nearest of some queries, after the number of cells was chosen without them."""
    bad = torch.rand(N, generator=torch.Generator().manual_seed(0)) < 0.3
    set_cells, chosen = approximate._Index.set_cells, []

    def with_all_cells(self, recall, rows, exact):
        answer = set_cells(self, recall, rows, exact)
        self.lists.nprobe = self.lists.nlist
        chosen.append(True)
        return answer

    search = approximate._Index._search_block

    def hiding(self, rows, spare):
        indices, distances = search(self, rows, spare)
        if chosen:
            far = distances[:, -1:] + 1
            worse = torch.cat([distances[:, 2:], far, far], 1)
            distances = torch.where(bad[rows, None], worse, distances)
        return indices, distances

    monkeypatch.setattr(approximate, "SAMPLE", N)  # the sample that is measured: every other query
    monkeypatch.setattr(approximate._Index, "set_cells", with_all_cells)
    monkeypatch.setattr(approximate._Index, "_search_block", hiding)
    expected = 1 - 2 / K * bad[1::2].double().mean()
    with pytest.warns(ConvergenceWarning, match=rf"found {expected:.2%} of the true.*exact search, recall=1"):
        found = nearest_neighbors(points(N, 6), K, recall=0.96, backend="faiss")
    exact = nearest_neighbors(points(N, 6), K, recall=1, backend="faiss")  # as the warning says
    assert torch.equal(exact.indices, nearest_neighbors(points(N, 6), K).indices)
    assert found.recall == pytest.approx(float(expected), abs=1e-9)


def test_the_exact_search_is_taken_where_it_costs_less(cells, monkeypatch):
    x = points(N, 6)
    exact = nearest_neighbors(x, K)
    monkeypatch.setattr(approximate, "SCANNED", 1e3)
    for options in ({"recall": 0.99}, {"backend": "faiss"}, {"recall": 1.0}, {"recall": 1.0, "backend": "faiss"}):
        found = nearest_neighbors(x, K, **options)
        assert torch.equal(found.indices, exact.indices)
        assert found.recall == 1


def test_copies_beyond_k(cells):
    """Hundreds of equal points: any of them are true neighbours, and a point is none of its own."""
    found = nearest_neighbors(points(20, 6).repeat(100, 1), 5, recall=0.9)
    assert found.recall == 1
    assert not found.squared_distances.any()
    assert (found.indices != torch.arange(N)[:, None]).all()


def test_graphs_and_weights_tell_the_recall(cells):
    x = points(N, 6)
    rule = KNN(K, recall=0.9)
    graph = rule(x)
    assert 0.9 <= graph.recall < 1
    assert rule.with_state(x)[0].recall == HeatKernel()(x, graph).recall == graph.recall
    assert graph.to(torch.float32).recall == graph.subgraph(torch.arange(5)).recall == graph.recall
    assert knn_graph(x, K).recall == 1
    batch = KNN(K, recall=0.9)(torch.stack([x, x.flip(0)]), torch.arange(N) < torch.tensor([[N], [5]]))
    assert 0.9 <= batch.recall < 1
    for symmetrize in ("union", "mutual", "mean"):
        assert KNN(K, symmetrize, "cosine", recall=0.9)(x).recall >= 0.9


@pytest.mark.parametrize("options", [{"backend": "faiss"}, {"recall": 0.9}])
def test_without_faiss_the_error_names_the_extra(options, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"pip install .*faiss"):
        nearest_neighbors(points(20, 2), 3, **options)
