"""The contract of the embedding methods: the same laws for all of them."""

import numpy as np
import pytest
import torch

import torch_lapeig as tl
from problems import DEVICES, DTYPES, Gaussian, check_derivatives, covering, grams, quiet, sheet
from torch_lapeig.eigen import Eigh


def maker(method, *rule, **fixed):
    return lambda k=2, **options: method(k, *rule, **fixed, **options)


K6 = tl.KNN(6)
METHODS = {
    "LaplacianEigenmaps": maker(tl.LaplacianEigenmaps, K6),
    "LaplacianEigenmaps, orthonormal": maker(tl.LaplacianEigenmaps, K6, tl.HeatKernel(2.0), scale="orthonormal"),
    "LaplacianEigenmaps, separate": maker(tl.LaplacianEigenmaps, K6, components="separate"),
    "LaplacianEigenmaps, landmarks": maker(tl.LaplacianEigenmaps, tl.Landmarks(9, 4)),
    "DiffusionMap": maker(tl.DiffusionMap, K6, time=1.5),
    "SpectralClustering": maker(tl.SpectralClustering, K6),
    "SpectralClustering, Shi–Malik": maker(tl.SpectralClustering, K6, variant="shi_malik"),
    "MDS": maker(tl.MDS),
    "Isomap": maker(tl.Isomap, K6),
    "Isomap, landmarks": maker(tl.Isomap, K6, landmarks=9),
    "Isomap, radius": maker(tl.Isomap, tl.Radius(2.5)),
    "LLE": maker(tl.LLE, K6),
    "KernelPCA": maker(tl.KernelPCA, gamma=0.3),
    "KernelPCA, linear": maker(tl.KernelPCA, "linear"),
    "KernelPCA, poly": maker(tl.KernelPCA, "poly", degree=2),
    "KernelPCA, module": lambda **options: maker(tl.KernelPCA, Gaussian())(**options),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
SIZES = [20, 13, 3, 1, 0]
ON_A_DEVICE = ("LaplacianEigenmaps, separate", "SpectralClustering", "MDS", "Isomap, landmarks", "LLE", "KernelPCA")


def padded(sizes=SIZES, seed=0):
    """Points of items of these sizes, NaN where it is padding, and the mask."""
    x = sheet(max(sizes), batch=len(sizes), seed=seed)
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    return x.masked_fill(~mask[..., None], torch.nan), mask


@pytest.mark.parametrize(("name", "device"), [(n, "cpu") for n in METHODS] + [(n, DEVICES[1]) for n in ON_A_DEVICE])
def test_shapes_and_names(name, device):
    x = sheet(20).to(device)
    module = METHODS[name]()
    y = module(x)
    assert (y.shape, y.dtype, y.device) == ((20, 2), x.dtype, x.device)
    found = module.embed(x)
    assert isinstance(found, tl.Embedding)
    assert torch.equal(found.embedding, y)
    at_nodes = getattr(module, "components", None) == "separate"
    assert found.eigenvalues.shape == found.residuals.shape == ((20, 2) if at_nodes else (2,))
    assert found.gap.shape == ((20,) if at_nodes else ())
    assert all(isinstance(pairs, tl.Eigenpairs) for pairs in found.pairs)
    assert module.fit(x) is module
    assert torch.equal(module.embedding_, y)
    assert module.residuals_.max() < 1e-9
    assert module.transform(sheet(4, seed=1).to(device)).shape == (4, 2)
    batch = module.embed(sheet(20, batch=3).to(device))
    assert batch.embedding.shape == (3, 20, 2)
    assert batch.eigenvalues.shape == ((3, 20, 2) if at_nodes else (3, 2))
    assert batch.gap.shape == ((3, 20) if at_nodes else (3,))


@every_method
def test_the_second_argument_is_the_mask(make):
    x, mask = sheet(40), torch.arange(40) < 35
    torch.testing.assert_close(make()(x, mask), make()(x, mask=mask))
    with pytest.raises(TypeError, match="mask must be a boolean tensor"):
        make().embed(x, sheet(4))


@every_method
def test_fit_transform_is_the_fit(make):
    x, model = sheet(30), make()
    y = model.fit_transform(x)
    assert y is model.embedding_ or torch.equal(y, model.embedding_)
    assert model.fit_transform(x.bfloat16().float()).dtype == torch.float32
    assert model.fit_transform(x.bfloat16()).dtype == torch.bfloat16


@every_method
def test_a_batch_equals_its_items_whatever_the_padding(make):
    """Columns that an item has too few points for are zero, and so are rows of padding and their gradients."""
    # Each item's new points are embedded given its valid points; given one point or none they are zero.
    (x, mask), news = padded(), sheet(5, batch=len(SIZES), seed=1)
    module, leaf, leaf_new = make(), x.clone().requires_grad_(), news.clone().requires_grad_()
    y, y_new = quiet(module.out_of_sample, leaf, leaf_new, mask=mask)
    torch.testing.assert_close(y, quiet(module, x, mask=mask))
    assert not y[~mask].any()
    for b in (0, 1):
        torch.testing.assert_close(y[b, : SIZES[b]], module(x[b, : SIZES[b]]))
        torch.testing.assert_close(y_new[b], make().fit(x[b, : SIZES[b]]).transform(news[b]))
    alone = quiet(module, x[2:3, :3])[0]
    torch.testing.assert_close(y[2, :3], alone)
    assert (alone != 0).any(0).sum() >= 1  # of three points on a path there is one column of geodesics
    assert not y[3:].any()
    assert not y_new[3:].any()
    (slope,) = torch.autograd.grad(y.square().sum(-1).square().sum() + y.sum(), leaf, retain_graph=True)
    assert slope[:2].abs().amax((1, 2)).min() > 0
    (y.square().sum() + y_new.square().sum()).backward()
    for gradient in (slope, leaf.grad):
        assert not gradient[~mask].any()
        assert gradient.isfinite().all()
    assert leaf_new.grad.isfinite().all()


@every_method
@pytest.mark.parametrize("left", [1, 0])
def test_a_batch_of_which_nothing_is_left_has_zero_rows_and_gradients(make, left):
    x, mask = sheet(7, batch=2).requires_grad_(), torch.arange(7) < torch.tensor([[left], [0]])
    rows = [quiet(make(), x, mask=mask), *quiet(make().out_of_sample, x, sheet(3, batch=2).requires_grad_(), mask=mask)]
    assert not any(y.any() for y in rows)
    sum(y.sum() + y.square().sum() for y in rows).backward()
    assert not x.grad.any()


@every_method
def test_columns_beyond_a_small_item_are_zero(make):
    x, mask = padded([20, 3])
    x = torch.cat([x, x.sin() * x.flip(-1), x.cos()], -1)  # of nine dimensions
    found = quiet(make(k=6).embed, x, mask=mask)
    assert (found.embedding[0] != 0).any(0).all()
    assert not found.embedding[1, :, 3:].any()
    values = found.eigenvalues[1].reshape(-1, 6)[0]
    kernel = isinstance(make(), (tl.MDS, tl.Isomap, tl.KernelPCA))
    assert (values[3:] == (0 if kernel else torch.inf)).all()
    if getattr(make(), "components", "joint") == "joint":  # a component on its own has as many columns as it has
        with pytest.raises(ValueError, match=r"n_components|n_clusters|landmarks"):
            quiet(make(k=6), x[1, :3])


@pytest.mark.parametrize("make", [METHODS[name] for name in METHODS if "landmarks" not in name])
def test_five_points_are_treated_alike_with_six_neighbours(make):
    """Alone, in a batch of one, beside a larger item, after a fit: all are joined, and the rows are the same."""
    x, module, other = sheet(5), make(), make()
    y = quiet(module, x)
    torch.testing.assert_close(quiet(module, x[None])[0], y)
    both, mask = torch.stack([torch.cat([x, x]), sheet(10, seed=2)]), torch.arange(10) < torch.tensor([[5], [10]])
    torch.testing.assert_close(quiet(module, both, mask=mask)[0, :5], y)
    torch.testing.assert_close(quiet(other.fit, x).embedding_, y)
    torch.testing.assert_close(quiet(other.transform, x), y)
    torch.testing.assert_close(quiet(module.out_of_sample, x, x)[1], y)


@pytest.mark.parametrize("make", [METHODS[name] for name in METHODS if "MDS" in name or "PCA" in name])
def test_items_that_are_flat_or_one_point_have_zero_columns_and_gradients(make):
    """A line has one column, copies of one point have none: neither a warning nor NaN where there is nothing."""
    line = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.0, -1.0])
    x = torch.stack([sheet(12), line, torch.ones_like(line)]).requires_grad_()
    y, y_new = make().out_of_sample(x, sheet(3, batch=3, seed=1))
    assert y[1, :, 0].abs().max() > 0
    assert not y[2].any()
    assert not y_new[2].any()
    (y[0].square().sum() + y.square().sum(-1).square().sum() + y_new.sum()).backward()
    assert x.grad.isfinite().all()
    assert x.grad[:2].abs().amax((1, 2)).min() > 0


@every_method
def test_a_mask_of_one_set_leaves_points_out(make):
    x, new, mask = sheet(20), sheet(5, seed=1), torch.arange(20) != 7
    y, y_new = make().out_of_sample(x.masked_fill(~mask[:, None], torch.nan), new, mask=mask)
    assert not y[7].any()
    torch.testing.assert_close(y[mask], make()(x[mask]))
    torch.testing.assert_close(y_new, make().fit(x[mask]).transform(new))


@covering(1, make=METHODS, dtype=[torch.float16, torch.bfloat16])
def test_half_precision_in_and_out(make, dtype):
    x, new = sheet(20, batch=2, dtype=torch.float32).to(dtype), sheet(4, seed=1, dtype=torch.float32).to(dtype)
    module = make()
    found = module.embed(x)
    assert found.embedding.dtype == found.eigenvalues.dtype == dtype
    assert torch.equal(found.embedding, module(x.float()).to(dtype))
    y, y_new = module.out_of_sample(x[0], new)
    assert y.dtype == y_new.dtype == dtype
    module.fit(x[0])
    assert module.embedding_.dtype == torch.float32
    assert torch.equal(module.transform(new), module.transform(new.float()).to(dtype))
    torch.testing.assert_close(y_new, module.transform(new))
    rounded = module.to(dtype)
    assert rounded.transform(new).dtype == dtype
    torch.testing.assert_close(rounded.transform(new), y_new, atol=3e-2, rtol=3e-2)


@every_method
def test_gradients_to_points_and_new_points(make):
    """Check functions that do not depend on signs, in reverse and forward mode, and second derivatives."""
    module = make()
    x, new = sheet(16).requires_grad_(), sheet(3, seed=2).requires_grad_()
    check_derivatives(lambda x: grams(module(x)), x, fast_mode=True)
    options = {"fast_mode": True, "check_forward_ad": True}
    assert torch.autograd.gradcheck(lambda x, new: grams(torch.cat(module.out_of_sample(x, new))), (x, new), **options)
    module.fit(x.detach())
    assert torch.autograd.gradcheck(module.transform, new)


@every_method
def test_gradients_of_a_padded_batch_with_new_points(make):
    x, mask = padded([12, 8])
    news = sheet(3, batch=2, seed=2).requires_grad_()
    module, valid = make(), x[mask].clone().requires_grad_()

    def gram(valid, new):
        filled = torch.zeros_like(x).masked_scatter(mask[..., None].expand_as(x), valid)
        return grams(torch.cat(quiet(module.out_of_sample, filled, new, mask=mask), 1))

    assert torch.autograd.gradcheck(gram, (valid, news), fast_mode=True)


@every_method
def test_new_points_go_with_the_points_and_with_a_fit(make):
    x = sheet(20, batch=2)
    for new in (sheet(4), sheet(4, batch=3), sheet(4, batch=2)[0, 0]):
        with pytest.raises(ValueError, match=r"x_new must have shape \(2, Q, D\) to go with the points, got"):
            make().out_of_sample(x, new)
    with pytest.raises(ValueError, match="like the training points"):
        make().out_of_sample(x[0], sheet(4)[:, :2])
    with pytest.raises(RuntimeError, match="must be fitted before it takes new points; call fit"):
        make().transform(sheet(4))


@covering(2, make=METHODS, dtype=DTYPES, device=DEVICES)
def test_training_points_get_their_rows(make, dtype, device):
    x = sheet(40, dtype=dtype).to(device)
    module = make().to(device, dtype).fit(x)
    y = module.embedding_
    assert (y.dtype, y.device) == (dtype, x.device)
    scale = float(y.abs().max())
    torch.testing.assert_close(module.transform(x), y, atol=scale * (1e-9 if dtype == torch.float64 else 2e-3), rtol=0)
    torch.testing.assert_close(module(x), y)


@every_method
def test_copies_of_points_and_new_points_on_them(make):
    x = sheet(30)
    x = torch.cat([x, x[:3]])
    module = make().fit(x)
    assert module.embedding_.isfinite().all()
    torch.testing.assert_close(module.transform(x)[:30], module.embedding_[:30])


@every_method
def test_repr_is_the_constructor(make):
    text = repr(make(solve=Eigh())) if not list(make().children()) else None
    if text is not None:
        assert repr(eval(text, vars(tl) | vars(tl.eigen))) == text
    assert "tolerance=1e-06" in repr(make(solve=tl.Solve(tolerance=1e-6)))


@every_method
def test_the_size_of_blocks_changes_nothing(make, small_blocks):
    module, x, new, results = make(), sheet(20).requires_grad_(), sheet(7, seed=1), []
    for _ in range(2):
        y = module.fit(x.detach())(x)
        (gradient,) = torch.autograd.grad(y[:, 0].pow(4).sum(), x)
        results.append((y, gradient, module.transform(new)))
        small_blocks()
    torch.testing.assert_close(*results)


@every_method
def test_numbers_of_numpy_and_wrong_arguments(make):
    assert torch.equal(make(k=np.int64(2))(sheet(20)), make()(sheet(20)))
    for wrong in (np.float64(2), True, "2", 0):
        with pytest.raises((TypeError, ValueError), match=r"n_components|n_clusters"):
            make(k=wrong)
    for wrong in (Eigh, tl.Solve, "eigh", 3, True, ["eigh"]):
        with pytest.raises(TypeError, match="solve must be a Solve, or a solver such as Eigh"):
            make(solve=wrong)


class Recorder:
    def __init__(self):
        self.calls = []

    def __call__(self, operator, k, tolerance, progress):
        self.calls.append((tolerance, progress))
        return Eigh()(operator, k, tolerance, progress)


@every_method
def test_options_of_the_solve_arrive(make):
    recorder, x = Recorder(), sheet(20)
    seen = []
    options = tl.Solve(recorder, tolerance=1e-7, progress=lambda *step: seen.append(step))
    (pairs,) = make(solve=options).embed(x).pairs
    assert pairs.solver is recorder
    assert recorder.calls[0][0] == 1e-7
    assert recorder.calls[0][1] is options.progress
    assert make(solve=recorder).embed(x).pairs[0].solver is recorder
    module = make(solve=tl.Solve(recorder, on_failure="raise"))
    module.fit(x)
    module.out_of_sample(x, x[:3])
    assert len(recorder.calls) == 4


def test_positional_encodings_take_a_solve():
    edges, recorder = tl.knn_graph(sheet(20), 4).edge_index, Recorder()
    tl.laplacian_positional_encoding(edges, 20, 3, solve=tl.Solve(recorder, tolerance=1e-7))
    assert recorder.calls[0][0] == 1e-7
