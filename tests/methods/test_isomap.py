"""Isomap: new points, landmarks that are given."""

import pytest
import torch

from problems import surface
from torch_lapeig import KNN, GraphWarning, Isomap, Radius


def test_new_points_of_isomap_equal_landmark_isomap():
    """The reference is de Silva & Tenenbaum's ½ L# (mean δ − δ(x)) with the training set as landmarks."""
    x, new = surface(60), surface(8, seed=3)
    module = Isomap(2, KNN(6)).fit(x)
    query, point, *_ = KNN(6).extend(new, x, module.train_rule)
    reach = torch.full((8, 60), torch.inf, dtype=x.dtype)
    for q, p in zip(query.tolist(), point.tolist(), strict=True):
        reach[q] = torch.minimum(reach[q], (new[q] - x[p]).norm() + module.geodesics_[p])
    squares = module.geodesics_.square()
    values, vectors = torch.linalg.eigh(-0.5 * (squares - squares.mean(0) - squares.mean(0)[:, None] + squares.mean()))
    pseudo_inverse = (vectors[:, -2:] / values[-2:].sqrt()).flip(1)
    expected = 0.5 * (squares.mean(0) - reach.square()) @ pseudo_inverse
    torch.testing.assert_close(module.transform(new).abs(), expected.abs())
    everything = Isomap(2, KNN(6), landmarks=torch.arange(60)).fit(x)
    torch.testing.assert_close(everything.embedding_, module.embedding_)
    torch.testing.assert_close(everything.transform(new), module.transform(new))


def test_new_points_without_a_neighbour():
    module = Isomap(2, Radius(2.5)).fit(surface(50))
    new = torch.stack([torch.full((3,), 100.0, dtype=torch.float64), surface(50)[7]])
    with pytest.warns(GraphWarning, match="1 of 2 new points have no neighbour"):
        y = module.transform(new)
    assert not y[0].any()
    torch.testing.assert_close(y[1], module.embedding_[7])
    with pytest.warns(GraphWarning, match="1 of 1 new points"):
        assert not module.transform(new[:1]).any()


@pytest.mark.parametrize("landmarks", [None, 12])
def test_new_points_that_equal_fitted_ones_have_their_rows_where_neighbours_are_equally_far(landmarks):
    """A search counts such a point among its own neighbours and ends ties elsewhere: no short cuts by other edges."""
    x = torch.randint(0, 4, (60, 4), generator=torch.Generator().manual_seed(5)).unique(dim=0).double()
    module = Isomap(2, KNN(7), landmarks=landmarks).fit(x)
    found = KNN(7).extend(x, x, module.train_rule)
    assert torch.equal(found.same, torch.arange(len(x)))
    assert len(found.point) != module.train_edges.shape[1]  # or there were nothing to show
    torch.testing.assert_close(module.transform(x), module.embedding_)
    new = torch.cat([x[:9], x[:9] + 0.25]).requires_grad_()
    torch.testing.assert_close(module.transform(new)[:9], module.embedding_[:9])
    (gradient,) = torch.autograd.grad(module.transform(new)[:9].sum(), new)
    assert (gradient[:9] != 0).any(1).all()


def test_landmarks_that_are_given_are_among_the_valid_points():
    x, mask = surface(30), torch.arange(30) % 5 != 0
    module = Isomap(2, KNN(6), landmarks=torch.arange(0, 24, 2))
    torch.testing.assert_close(module(x, mask=mask)[mask], module(x[mask]))
    with pytest.raises(ValueError, match=r"landmarks must lie in \[0, 9\)"):
        module(x.expand(2, -1, -1), mask=torch.stack([mask, torch.arange(30) < 9]))
