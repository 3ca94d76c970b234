"""Eigenmaps by landmarks: equal to the eigenvectors of Z Λ⁻¹ Zᵀ, in memory and from a stream."""

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from problems import DEVICES, covering, polygon, saved_and_loaded
from problems import of_cube as points
from torch_lapeig import HeatKernel, Landmarks, LaplacianEigenmaps

T = 0.3


def check_against_dense(model, x):
    """Check values, orthonormal columns and their eigenspace against `eigh` of all affinities Z Λ⁻¹ Zᵀ."""
    y, k, landmarks = model.transform(x), model.n_components, model.train_points
    squared, nearest = torch.cdist(x, landmarks).square().topk(model.neighbors.r, largest=False)
    shares = torch.zeros(len(x), len(landmarks), dtype=x.dtype).scatter(1, nearest, (-squared / T).softmax(1))
    inverse = torch.where(shares.sum(0) > 0, 1 / shares.sum(0), 0)
    values, vectors = torch.linalg.eigh(torch.eye(len(x)) - (shares * inverse) @ shares.mT)
    torch.testing.assert_close(model.eigenvalues_, values[1 : k + 1], atol=1e-12, rtol=0)
    torch.testing.assert_close(y.mT @ y, torch.eye(k, dtype=y.dtype), atol=1e-10, rtol=0)
    basis = vectors[:, 1 : k + 1]
    torch.testing.assert_close(basis @ (basis.mT @ y), y, atol=1e-8, rtol=0)


@covering(1, choose=["kmeans", "farthest", "random"], device=DEVICES)
def test_equal_to_eigenvectors_of_all_affinities(choose, device):
    x = points(300)
    model = LaplacianEigenmaps(3, Landmarks(40, 4, choose), HeatKernel(T)).fit(x.to(device)).cpu()
    assert 30 < len(model.train_points) <= 40
    check_against_dense(model, x)
    torch.testing.assert_close(model.transform(x), model.embedding_)


def test_all_points_are_landmarks_where_there_are_no_more():
    x = points(30)
    assert torch.equal(Landmarks(100, 4).of_points(x).sort(0).values, x.sort(0).values)
    copies = torch.cat([x, x, x])
    for choose in ("kmeans", "farthest", "random"):
        found = Landmarks(60, 4, choose).of_points(copies)
        assert len(found.unique(dim=0)) == len(found)


def test_farthest_points_cover_the_set():
    """They leave no point farther away than twice the smallest radius that so many balls need (Gonzalez 1985)."""
    grid = torch.cartesian_prod(*[torch.arange(20.0, dtype=torch.float64)] * 2)
    assert torch.cdist(grid, Landmarks(100, 4, "farthest").of_points(grid)).amin(1).max() <= 2 * 2**0.5


@pytest.mark.parametrize("scale", ["degree", "unit"])
def test_gradients_at_equal_eigenvalues(scale):
    """Regular polygons have pairs of equal eigenvalues; the Gram matrix of a pair is smooth."""
    x = polygon(12).requires_grad_()
    bandwidth = HeatKernel(1.0, learnable=True).double()
    model = LaplacianEigenmaps(2, Landmarks(12, 3, "random"), bandwidth, scale=scale)

    def gram(x, log_factor):
        y = torch.func.functional_call(model, {"weights.log_factor": log_factor}, (x,))
        return y @ y.mT

    if scale == "unit":
        x = (x.detach() * torch.tensor([1.0, 0.8])).requires_grad_()
    assert torch.autograd.gradcheck(gram, (x, bandwidth.log_factor.detach().clone().requires_grad_()), fast_mode=True)


def streams(x, folder):
    """Return one set of points as the kinds of source that people have."""
    table = np.memmap(folder / "points.bin", np.float64, "w+", shape=tuple(x.shape))
    table[:] = x.numpy()
    parts = x.split(70)
    found = {"tensor": x, "array": x.numpy(), "frame": pandas.DataFrame(x.numpy()), "memory map": table}
    found |= {"list": list(parts), "arrays": [part.numpy() for part in parts]}
    found |= {"other bytes": [part.numpy().astype(">f8") for part in parts]}
    return found | {"loader": DataLoader(TensorDataset(x, torch.arange(len(x))), batch_size=64)}


def test_every_kind_of_stream(tmp_path):
    x = points(300)
    for source in streams(x, tmp_path).values():
        model = LaplacianEigenmaps(3, Landmarks(40, 4), HeatKernel(T)).fit_stream(source)
        assert model.train_count == 300
        check_against_dense(model, x)
        torch.testing.assert_close(model.transform(model.train_points), model.embedding_)


def test_a_stream_beyond_the_size_of_the_sample():
    """The landmarks are chosen from a part of the points."""
    large = points(1000)
    check_against_dense(LaplacianEigenmaps(3, Landmarks(12, 4), HeatKernel(T)).fit_stream(large.split(90)), large)


class Broken:
    """Blocks of points that can be read once, and fail after ``most`` blocks the second time."""

    def __init__(self, blocks, most):
        self.blocks, self.most, self.readings = blocks, most, 0

    def __iter__(self):
        self.readings += 1
        for number, block in enumerate(self.blocks):
            if self.readings > 1 and number == self.most:
                raise KeyboardInterrupt
            yield block


def test_an_interrupted_stream_loses_no_block(tmp_path):
    x = points(300)
    model = LaplacianEigenmaps(3, Landmarks(40, 4), HeatKernel(T))
    with pytest.raises(KeyboardInterrupt):
        model.fit_stream(Broken(x.split(60), 3))
    assert model.train_count == 180
    check_against_dense(model, x[:180])
    other = LaplacianEigenmaps(3, Landmarks(40, 4), HeatKernel(T))
    other.load_state_dict(saved_and_loaded(model.state_dict()))
    other.fit_stream(iter(x[180:].split(50)), resume=True)
    assert other.train_count == 300
    check_against_dense(other, x)


@pytest.mark.parametrize("choose", ["kmeans", "farthest", "random"])
def test_few_distinct_points(choose):
    """Copies have one row, of as many landmarks as there are distinct points; copies of one point are refused."""
    x = points(4, 3).repeat(30, 1)
    model, stream = (LaplacianEigenmaps(2, Landmarks(10, choose=choose)) for _ in range(2))
    rows = model.fit(x).embedding_
    assert len(model.train_points) == 4
    torch.testing.assert_close(rows, rows[:4].repeat(30, 1))
    torch.testing.assert_close(stream.fit_stream(x.split(40)).transform(x), rows)
    for call in (model.fit, model, stream.fit_stream):
        with pytest.raises(ValueError, match=r"two distinct points for Landmarks\(m=10\), got copies of one only"):
            call(x[:1].expand(50, 3))


def test_what_a_stream_refuses():
    model = LaplacianEigenmaps(2, Landmarks(20))
    x = points(100)
    with pytest.raises(RuntimeError, match="fitted"):
        model.fit_stream(x, resume=True)
    for nothing in ([], x[:0], x[:1], x[0]):
        with pytest.raises(ValueError, match=r"at least|shape"):
            model.fit_stream(nothing)
    with pytest.raises(ValueError, match=r"dimension 3, got .* of dimension 2"):
        model.fit(x).fit_stream([x[:, :2]], resume=True)
    with pytest.raises(ValueError, match="finite"):
        model.fit_stream([x, torch.full_like(x, torch.nan)])
    assert model.train_count == 100
