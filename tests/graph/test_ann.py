"""Approximate search through faiss: distances are exact, the recall is told."""

import numpy as np
import pytest
import torch

from problems import points
from torch_lapeig import KNN
from torch_lapeig.graph import ann, nearest_neighbors


def test_faiss_is_measured_and_exact_in_distance(caplog):
    pytest.importorskip("faiss")
    x = points(3000, 8, dtype=torch.float32)
    with caplog.at_level("INFO", "torch_lapeig"):
        found = nearest_neighbors(x, 10, backend="faiss")
    assert "IndexHNSWFlat" in caplog.text
    exact = nearest_neighbors(x, 10)
    rows = zip(found.indices.tolist(), exact.indices.tolist(), strict=True)
    share = np.mean([len(set(a) & set(b)) / 10 for a, b in rows])
    assert 0.95 < found.recall <= 1
    assert abs(found.recall - share) < 0.02
    assert exact.recall == 1
    own = torch.arange(3000)[:, None]
    assert (found.indices != own).all()
    d2 = (x[:, None] - x[found.indices]).square().sum(-1)
    torch.testing.assert_close(found.squared_distances, d2)
    assert KNN(10, backend="faiss")(x).weight.numel() > 10 * 3000


def test_without_faiss_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ImportError, match=r"torch-lapeig\[ann\]"):
        nearest_neighbors(points(20, 2), 3, backend="faiss")


def test_faiss_index_by_size():
    faiss = pytest.importorskip("faiss")
    assert type(ann.choose_index(faiss, 10_000, 8)).__name__ == "IndexHNSWFlat"
    assert type(ann.choose_index(faiss, 10**6, 8)).__name__ == "IndexIVFFlat"


def test_blocks_masks_and_copies(small_blocks):
    pytest.importorskip("faiss")
    x = points(40, 3, batch=2, dtype=torch.float32)
    x[:, 9] = x[:, 4]
    mask = torch.arange(40) < torch.tensor([40, 25])[:, None]
    whole = nearest_neighbors(x, 5, backend="faiss", mask=mask)
    small_blocks()
    found = nearest_neighbors(x, 5, backend="faiss", mask=mask)
    exact = nearest_neighbors(x, 5, mask=mask)
    for b, length in enumerate(mask.sum(1).tolist()):  # so few points that the index finds all
        assert torch.equal(found.indices[b, :length], exact.indices[b, :length])
        assert torch.equal(whole.indices[b, :length], exact.indices[b, :length])
