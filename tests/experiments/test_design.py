"""Design of networks: gradients of the connectivity, and what its maximum looks like."""

import numpy as np
import pytest
import torch

from experiments.design import OBJECTIVES, Network
from problems import short_form


@pytest.mark.parametrize("way", OBJECTIVES)
def test_gradient_is_that_of_differences(way):
    network = Network(30, 0)
    generator = torch.Generator().manual_seed(0)
    weights, direction = (torch.rand(network.budget, dtype=torch.float64, generator=generator) for _ in range(2))
    weights, step = (weights + 0.5).requires_grad_(), 1e-5

    def objective(at):
        # Sharpness is over the second eigenvalue, which the gradient takes for a constant.
        sharpness = 5.0 * network.smallest(at, 1)[0][0] / network.smallest(weights, 1)[0][0]
        return OBJECTIVES[way](network, at, 5, sharpness)[0]

    (gradient,) = torch.autograd.grad(objective(weights), weights)
    with torch.no_grad():
        expected = (objective(weights + step * direction) - objective(weights - step * direction)) / (2 * step)
    assert (gradient @ direction).item() == pytest.approx(expected.item(), rel=1e-5)


def test_connectivity_of_a_cycle():
    """λ₂ = 2 − 2 cos(2π / n), twice."""
    network = Network(30, 0)
    node = torch.arange(12)
    network.nodes, network.edges = 12, torch.stack([node, node.roll(-1)])
    values, _ = network.smallest(torch.ones(12, dtype=torch.float64), 2)
    np.testing.assert_allclose(values, 2 - 2 * np.cos(np.pi / 6), rtol=1e-8)


def test_several_eigenvalues_are_equal_at_the_maximum(tmp_path):
    found = short_form("design", tmp_path)["nodes"]["100"]
    assert found["smooth"]["multiplicity"] >= 2
    assert found["smooth"]["gain"]["mean"] > 2
    assert abs(found["eigh"]["behind"]["mean"]) < 0.02
