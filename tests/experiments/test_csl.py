"""Circular skip links and pairs of equal spectra: the graphs, their spectra, and what networks make of them."""

import math

import pytest
import torch

from experiments.csl import COPIES, NODES, SKIPS, cubelike_graphs, pairs_of, skip_links, strongly_regular_graphs
from problems import short_form


def test_graphs_are_regular_circulants():
    """Eigenvalues of L_sym: 1 − (cos(2πj / n) + cos(2πjR / n)) / 2, which differ between the classes."""
    adjacency, labels = skip_links()
    assert adjacency.shape == (len(SKIPS) * COPIES, NODES, NODES)
    assert (adjacency == adjacency.mT).all()
    assert (adjacency.sum(1) == 4).all()
    values = pairs_of(adjacency, 20).values[:, 1:]
    angle = 2 * math.pi * torch.arange(NODES, dtype=torch.float64) / NODES
    spectra = torch.stack([1 - (angle.cos() + (skip * angle).cos()) / 2 for skip in SKIPS]).sort(1).values[:, 1:21]
    torch.testing.assert_close(values.double(), spectra[labels], rtol=0, atol=1e-5)
    assert torch.pdist(spectra).min() > 0.1


def test_cubelike_graphs_differ_by_projectors_only():
    adjacency, labels = cubelike_graphs()
    assert (adjacency == adjacency.mT).all()
    assert (adjacency.sum(1) == adjacency.sum(1)[:, :1]).all()
    pairs = pairs_of(adjacency, 31)
    same = labels // 2
    for pair in range(3):
        values = pairs.values[same == pair]
        torch.testing.assert_close(values, values[:1].expand_as(values), rtol=0, atol=1e-5)
        assert (values[0].diff() < 1e-5).sum() >= 25  # equal to the one before

    def rows(graph):
        """Return what node 0 sees of the projectors, in an order that does not depend on the others' numbers."""
        values, vectors = pairs.values[graph], pairs.vectors[graph]
        levels = (values.diff(prepend=values[:1] - 1) > 1e-4).cumsum(0) - 1
        entries = torch.zeros(32, int(levels.max()) + 1).index_add(1, levels, vectors * vectors[:1])
        order = entries.mul(2.0 ** torch.arange(entries.shape[1])).sum(1).argsort()
        return entries[order]

    for first in range(0, 6, 2):
        a, b, c = (rows(int((labels == kind).nonzero()[at])) for kind, at in ((first, 0), (first, 1), (first + 1, 0)))
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
        assert (a - c).abs().max() > 0.02


def test_encodings_do(tmp_path):
    metrics = short_form("csl", tmp_path)
    assert metrics["csl"]["none"]["mean"] == pytest.approx(0.1, abs=0.05)
    assert metrics["csl"]["values"]["mean"] > 0.8


def test_strongly_regular_graphs_have_the_same_projectors():
    """(16, 6, 2, 2): A² = 6 I + 2 A + 2 (J − I − A), so that each projector is a combination of I, A and J."""
    adjacency, labels = strongly_regular_graphs()
    eye = torch.eye(16)
    assert (adjacency == adjacency.mT).all()
    assert torch.equal(adjacency @ adjacency, 6 * eye + 2 * adjacency + 2 * (1 - eye - adjacency))
    walks = [torch.linalg.matrix_power(graph[graph[0] > 0][:, graph[0] > 0], 3).trace().item() for graph in adjacency]
    assert walks == [12 * (1 - int(label)) for label in labels]  # neighbours: two triangles, or a cycle of six
