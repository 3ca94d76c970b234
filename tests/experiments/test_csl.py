"""Circular skip links: the graphs, their spectra in closed form, and what networks make of them."""

import json
import math

import pytest
import torch

from experiments.__main__ import main
from experiments.csl import COPIES, NODES, SKIPS, Gin, encoding, skip_links


def test_graphs_are_regular_circulants():
    """Eigenvalues of L_sym: 1 − (cos(2πj / n) + cos(2πjR / n)) / 2, which differ between the classes."""
    adjacency, labels = skip_links()
    assert adjacency.shape == (len(SKIPS) * COPIES, NODES, NODES)
    assert (adjacency == adjacency.mT).all()
    assert (adjacency.sum(1) == 4).all()
    _, values = encoding(adjacency, 20)
    angle = 2 * math.pi * torch.arange(NODES, dtype=torch.float64) / NODES
    spectra = torch.stack([1 - (angle.cos() + (skip * angle).cos()) / 2 for skip in SKIPS]).sort(1).values[:, 1:21]
    torch.testing.assert_close(values.double(), spectra[labels], rtol=0, atol=1e-5)
    assert torch.pdist(spectra).min() > 0.1


def test_message_passing_does_not_tell_them_apart():
    adjacency, _ = skip_links()
    torch.manual_seed(0)
    logits = Gin(1, 16)(torch.ones(len(adjacency), NODES, 1), adjacency)
    torch.testing.assert_close(logits, logits[:1].expand_as(logits))


def test_encodings_do(tmp_path):
    main(["csl", "--quick", "--out", str(tmp_path)])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["none"]["mean"] == pytest.approx(0.1, abs=0.05)
    assert metrics["values"]["mean"] > 0.8
