"""Points and weights of extreme ranges: the gradient that the dtype can hold is returned, in the layer and around it.

References have many digits (mpmath), or are float64 where float32 is under test.
"""

import mpmath
import numpy as np
import pytest
import torch

import torch_lapeig as tl
from problems import covering, every

SINGLE, DOUBLE = torch.float32, torch.float64
WEIGHTINGS = {"median": tl.HeatKernel, "t": lambda: tl.HeatKernel(1.0, learnable=True)}
WEIGHTINGS |= {"component": lambda: tl.HeatKernel("component-median"), "self-tuning": lambda: tl.SelfTuning(3)}
WEIGHTINGS |= {"density": tl.DensityCorrected, "half density": lambda: tl.DensityCorrected(0.5, tl.HeatKernel(1.0))}
WEIGHTINGS |= {"improved": tl.ImprovedWeights, "kernel": lambda: tl.KernelWeights(lambda squared: torch.exp(-squared))}
KINDS = ["heavy", "heavier", "outlier", "two outliers", "copies", "lattice", "tiny", "huge"]
TASKS = ["layer", "layer", "layer", "batch", "dense", "out of sample", "clustering", "smoothness"]
RELATIVES = ["mds", "isomap", "lle", "kernel pca"]
REFUSED = ["n_components must", "k must", "n_clusters must", "no edges", "connected components"]


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=DOUBLE)


def power_of_ten(generator, low, high):
    return 10.0 ** float(low + (high - low) * torch.rand((), generator=generator))


def cloud(kind, generator, n=24):
    x = normal(generator, n, 3)
    tails = normal(generator, n, 1)
    far = torch.zeros(n, 3, dtype=DOUBLE)
    if kind == "lattice":
        far[:, 0] = torch.arange(n)
        return far
    if kind == "outlier":
        far[0] = power_of_ten(generator, 3, 8)
    if kind == "two outliers":
        far[:2] = 1e4
    if kind == "copies":
        change = power_of_ten(generator, -12, -3) * normal(generator, n // 2, 3)
        return torch.cat([x[: n // 2], x[: n // 2] + change])
    factor = {"heavy": (1.5 * tails).exp(), "heavier": (3 * tails).exp()}.get(kind, 1.0)
    if kind == "tiny":
        factor = power_of_ten(generator, -15, -10) * (1.5 * tails).exp()
    if kind == "huge":
        factor = power_of_ten(generator, 10, 15) * (1.5 * tails).exp()
    return x * factor + far


def exact(x, graph, present, t, loss_weights, digits):
    """Columns 2 and 3 of L y = λ D y, Yᵀ D Y = I, and the gradient of Σ c y² in the points, from all eigenvectors."""
    mp = mpmath.mp.clone()
    mp.dps = digits
    (n, _), k = x.shape, loss_weights.shape[1]
    points, c = (np.vectorize(mp.mpf, otypes=[object])(part.double().numpy()) for part in (x, loss_weights))
    apart = points[:, None] - points
    w = np.full((n, n), mp.mpf(0))
    for i, j in graph.edge_index.T[present].tolist():
        w[i, j] = mp.exp(-mp.fsum(apart[i, j] ** 2) / mp.mpf(t))
    active = np.flatnonzero(w.sum(1) > 0)
    w, apart, c = w[np.ix_(active, active)], apart[np.ix_(active, active)], c[active]
    degrees = w.sum(1)
    s = np.array([1 / mp.sqrt(d) for d in degrees])[:, None]
    couplings = s * w * s.T
    values, v = mp.eigsy(mp.eye(len(w)) - mp.matrix(couplings.tolist()))
    values, v = np.array(list(values)), np.array(v.tolist())
    wanted = range(1, k + 1)
    y = s * v[:, wanted]
    cotangent = 2 * c * y
    # Of the entries of S = D^-½ W D^-½, then of log w_ij.
    to_s = np.full(w.shape, mp.mpf(0))
    for q, to_v in zip(wanted, (s * cotangent).T, strict=True):
        others = np.arange(len(w)) != q
        z = v[:, others] @ ((v[:, others].T @ to_v) / (values[q] - values[others]))
        to_s = to_s - z[:, None] * v[:, q]
    to_log = to_s * couplings
    to_degree = -((cotangent * y).sum(1) + to_log.sum(1) + to_log.sum(0)) / 2
    share = w * ((to_degree / degrees)[:, None] + to_degree / degrees) + to_log + to_log.T
    found, gradient = torch.zeros(n, k, dtype=DOUBLE), torch.zeros(n, 3, dtype=DOUBLE)
    found[active] = torch.from_numpy(y.astype(float))
    gradient[active] = torch.from_numpy((-2 * (share[..., None] * apart).sum(1) / mp.mpf(t)).astype(float))
    return found, gradient


@pytest.mark.filterwarnings("ignore:.*isolated")
@pytest.mark.parametrize(
    ("dtype", "tail", "scale", "seed"),
    [(SINGLE, 1.5, 1.0, s) for s in (0, 6, 8, 10)]
    + [(SINGLE, 1.5, 1e-15, s) for s in (30, 34, 35)]
    + [(SINGLE, 1.5, 1e15, 40), (SINGLE, 3.0, 1.0, 21), (SINGLE, 3.0, 1.0, 26)]
    + [(DOUBLE, 2.2, 1.0, 51), (DOUBLE, 2.2, 1.0, 53), (DOUBLE, 3.0, 1e-15, 65)],
)
def test_values_and_gradients_have_the_digits_of_the_dtype(dtype, tail, scale, seed):
    """Degrees down to the smallest numbers, embeddings up to their inverse root, gradients beyond that of weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(22, 3, generator=generator) * torch.exp(tail * torch.randn(22, 1, generator=generator)) * scale
    x = x.to(dtype)
    loss_weights = torch.rand(22, 2, generator=generator).to(dtype)
    graph = tl.knn_graph(x, 5, symmetrize="union")
    t = float(graph.pattern.squared_lengths(x).median())
    weighted = tl.HeatKernel(t)(x, graph)
    present = (weighted.weight > 0) & tl.Laplacian(weighted).active[graph.edge_index].all(0)
    y, gradient = exact(x, graph, present, t, loss_weights, digits=80 if dtype == SINGLE else 400)
    x.requires_grad_()
    found = tl.LaplacianEigenmaps(2, tl.KNN(5, "union"), tl.HeatKernel(t))(x)
    (loss_weights * found.square()).sum().backward()
    tolerance = 3e-3 if dtype == SINGLE else 1e-6
    assert ((found.detach().abs() - y.abs()).abs().amax(0) <= tolerance * y.abs().amax(0)).all()
    assert (x.grad - gradient).abs().max() <= tolerance * gradient.abs().max()


@pytest.mark.filterwarnings("ignore:.*isolated")
def test_rows_of_tiny_degree_solve_their_problem():
    """(1 − λ) y_i = Σ_j p_ij y_j at every node, though v_i is 10⁻¹⁷ of the largest entry of v."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(60, 3, generator=generator) * torch.exp(1.5 * torch.randn(60, 1, generator=generator))
    laplacian = tl.Laplacian(tl.HeatKernel()(x, tl.knn_graph(x, 8)), "random_walk")
    assert laplacian.tiny_degrees.any(-1).all()
    pairs = tl.eigenpairs(laplacian, 3)
    y, share = pairs.vectors.double(), laplacian.values.double()
    residual = (1 - pairs.values.double()) * y - laplacian.graph.pattern.matmul(share, y)
    assert (residual.abs() <= 1e-4 * y.abs().amax(0))[laplacian.active].all()


@every(dense=[False, True], outliers=[1, 2])
def test_gradients_of_null_vectors_do_not_drown_in_round_off(dense, outliers):
    """Null vectors are 1 / vol^½ at every node, however small its degree: float32 agrees with float64."""
    generator = torch.Generator().manual_seed(outliers)
    clusters = [torch.randn(30, 3, generator=generator) + 300 * i for i in range(2)]
    beside = 9 * torch.tensor([[1.0, 1, 1], [-1, -1, -1]])[:outliers]  # degrees down to 1e-29
    x = torch.cat([*clusters, *(cluster[:1] + beside for cluster in clusters)])
    rule, aim = tl.knn_graph(x, 6), torch.randn(len(x), 2, generator=generator)
    weight = tl.HeatKernel(5.0)(x, rule).weight
    found = []
    for dtype in (SINGLE, DOUBLE):
        w = weight.to(dtype).requires_grad_()
        graph = tl.Graph(rule.pattern, w)
        graph = tl.Graph.from_dense(graph.to_dense()) if dense else graph
        laplacian = tl.Laplacian(graph, "random_walk")
        assert laplacian.nullity == 2
        y = tl.eigenpairs(laplacian, 4).vectors
        loss = (y @ (y.mT @ aim.to(dtype))).square().sum()
        found.append(torch.autograd.grad(loss, w)[0].double() * weight)
    assert (laplacian.degrees.min() < 1e-10 * laplacian.degrees.max()).item()
    # What is antisymmetric moves the weights to what no Laplacian is.
    single, double = (gradient + rule.pattern.transpose(gradient) for gradient in found)
    assert (single - double).norm() <= 1e-3 * double.norm()


def test_lost_derivatives_of_null_vectors_are_warned_of():
    """A pair of nodes that hangs on the others by 1e-30 of its own edge: its row of L y = λ D y allows any y."""
    row = torch.tensor([0, 1, 2, 0, 3, 4])
    col = torch.tensor([1, 2, 0, 3, 4, 0])
    weight = torch.tensor([1, 1, 1, 1e-60, 1e-30, 1e-60], dtype=DOUBLE)
    edges = torch.stack([torch.cat([row, col]), torch.cat([col, row])])
    order = (edges[0] * 5 + edges[1]).argsort()
    w = torch.cat([weight, weight])[order].requires_grad_()
    pairs = tl.eigenpairs(tl.Laplacian(tl.Graph.from_edge_index(edges[:, order], w), "random_walk"), 2)
    assert pairs.vectors[:, 0].detach().diff().abs().max() < 1e-6
    pairs.vectors[:3].square().sum().backward(retain_graph=True)  # nodes that are not concerned
    with pytest.warns(tl.GraphWarning, match="2 entries of eigenvectors at nodes of tiny degree are hidden in round"):
        pairs.vectors.square().sum().backward()


@pytest.mark.filterwarnings("ignore:.*isolated")
@covering(2, normalization=["symmetric", "random_walk", "unnormalized"], dtype=[SINGLE, DOUBLE], dense=[False, True])
def test_weights_that_underflow_are_no_edges(normalization, dtype, dense):
    """A star of which each edge is below the smallest normal number, all together above it, beside a path."""
    faint = 0.8 * torch.finfo(dtype).tiny
    row, col = torch.tensor([0, 1, 2, 4, 4, 4, 4]), torch.tensor([1, 2, 3, 5, 6, 7, 0])
    edges = torch.stack([torch.cat([row, col]), torch.cat([col, row])])
    weight = torch.tensor([1.0, 1.0, 1.0] + [faint] * 4, dtype=dtype).repeat(2)
    graph = tl.Graph.from_edge_index(edges, weight)
    graph = tl.Graph.from_dense(graph.to_dense()) if dense else graph
    laplacian = tl.Laplacian(graph.with_weight(graph.weight.requires_grad_()), normalization)
    assert laplacian.active.tolist() == [True] * 4 + [False] * 4
    assert laplacian.nullity == 1
    pairs = tl.eigenpairs(laplacian, 4)
    path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    expected = tl.eigenpairs(tl.Laplacian(tl.Graph.from_edge_index(path, weight.new_ones(6)), normalization), 4)
    torch.testing.assert_close([pairs.values, pairs.vectors[:4]], [expected.values, expected.vectors])
    assert pairs.converged
    assert (pairs.vectors[4:] == 0).all()
    (gradient,) = torch.autograd.grad(pairs.values.square().sum(), laplacian.graph.weight)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


@pytest.mark.filterwarnings("ignore::UserWarning")
@every(kind=["outlier", "two outliers"], weighting=["median", "t", "self-tuning", "density"])
def test_far_points_do_not_spoil_the_gradient_of_the_others(kind, weighting):
    """Terms that cancel in the gradient of lengths are as large as the points, 10⁸; the edges have length 1."""
    probe = torch.rand(24, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    for seed in range(4):
        x = cloud(kind, torch.Generator().manual_seed(seed)).float()
        pattern = tl.knn_graph(x, 5).pattern
        results = []
        for dtype in (SINGLE, DOUBLE):
            v = x.to(dtype).clone().requires_grad_()
            graph = WEIGHTINGS[weighting]()(v, tl.Graph(pattern, torch.ones(len(pattern), dtype=dtype)))
            y = tl.LaplacianEigenmaps(2, tl.Precomputed("affinity"), scale="unit")(graph)
            (y.square() * probe).sum().backward()
            results.append(v.grad)
        assert torch.dist(*results) <= 1e-3 * results[1].norm()


@covering(1, exponent=[-50, 50, -20, 20], weighting=["median", "self-tuning", "density"])
def test_units_of_length_change_no_bit(weighting, exponent):
    """A kernel that knows no length gives the same embedding in any unit, and the gradient in that unit."""
    x = cloud("plain", torch.Generator().manual_seed(0)).float()
    results = []
    for factor in (1.0, 2.0**exponent):
        v = (x * factor).requires_grad_()
        y = tl.LaplacianEigenmaps(2, tl.KNN(5), WEIGHTINGS[weighting]())(v)
        y.abs().sum().backward()
        results.append((y.detach(), v.grad * factor))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


SCALED = [tl.MDS(2), tl.Isomap(2, tl.KNN(5)), tl.Isomap(2, tl.KNN(5), landmarks=9), tl.KernelPCA(2, "linear")]
SCALED.append(tl.LLE(2, tl.KNN(5)))


@pytest.mark.parametrize("method", SCALED)
@pytest.mark.parametrize("exponent", [-50, 45])
def test_units_of_length_scale_scaling(method, exponent):
    """Rows of points and new points are in their unit, those of LLE in none."""
    x, new = (cloud("plain", torch.Generator().manual_seed(seed)).float() for seed in (0, 1))
    results = []
    for factor in (1.0, 2.0**exponent):
        unit = 1.0 if isinstance(method, tl.LLE) else factor
        v = (x * factor).requires_grad_()
        y, y_new = method.out_of_sample(v, new[:4] * factor)
        loss = (y.abs().sum() + y_new.abs().sum()) * (factor / unit)
        (gradient,) = torch.autograd.grad(loss, v, create_graph=True)
        (second,) = torch.autograd.grad((gradient * x.cos()).sum(), v)
        results.append((y.detach() / unit, y_new.detach() / unit, gradient.detach(), second * factor))
    for ours, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(expected.abs().max())))


def embedded(task, x, weights, scale, normalization):
    layer = tl.LaplacianEigenmaps(2, tl.KNN(5), weights, scale=scale, normalization=normalization)
    if task == "batch":
        mask = torch.ones(2, 24, dtype=torch.bool)
        mask[1, 20:] = False
        return layer(torch.stack([x, x.detach().flip(0)]), mask=mask)
    if task == "dense":
        complete = tl.Graph.from_dense(torch.ones(24, 24, dtype=x.dtype).fill_diagonal_(0))
        options = {"scale": scale, "normalization": normalization}
        return tl.LaplacianEigenmaps(2, tl.Precomputed("affinity"), **options)(weights(x, complete))
    other = {
        "clustering": lambda: tl.SpectralClustering(2, tl.KNN(5), weights)(x),
        "smoothness": lambda: tl.LaplacianSmoothness(tl.KNN(5), weights)(x.sin(), x),
        "mds": lambda: tl.MDS(2)(x),
        "isomap": lambda: tl.Isomap(2, tl.KNN(5))(x),
        "lle": lambda: tl.LLE(2, tl.KNN(5))(x),
        "kernel pca": lambda: tl.KernelPCA(2)(x),
        "out of sample": lambda: torch.cat(layer.out_of_sample(x[:20], x[20:])),
    }
    return other.get(task, lambda: layer(x))()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_steps(kind, dtype):
    """Random steps of training give finite outputs and gradients, or a clear refusal."""
    for seed in range(15):
        generator = torch.Generator().manual_seed(seed)

        def pick(options, generator=generator):
            return options[int(torch.randint(len(options), (), generator=generator))]

        x = cloud(kind, generator).to(dtype).requires_grad_()
        task, weighting = pick(TASKS + RELATIVES), pick(list(WEIGHTINGS))
        options = (pick(["unit", "degree"]), pick(["random_walk", "random_walk", "unnormalized"]))
        try:
            y = embedded(task, x, WEIGHTINGS[weighting](), *options)
        except ValueError as error:
            if any(part in str(error) for part in REFUSED):
                continue
            raise
        assert y.isfinite().all(), (seed, task, weighting, options)
        (gradient,) = torch.autograd.grad(y.abs().sum(), x, allow_unused=True, materialize_grads=True)
        assert gradient.isfinite().all(), (seed, task, weighting, options)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
def test_gradients_beyond_the_dtype_are_finite_and_warned_of(dtype):
    """Weights of 10⁻³⁰ (10⁻²⁵⁰) have embeddings of their inverse root and gradients of its cube, which overflow."""
    x = cloud("plain", torch.Generator().manual_seed(0)).to(dtype)
    size = 1e-30 if dtype == SINGLE else 1e-250
    affinity = (size * torch.exp(-torch.cdist(x, x).square()) * (1 - torch.eye(24))).to(dtype).requires_grad_()
    y = tl.LaplacianEigenmaps(2, tl.Precomputed("affinity"))(affinity)
    with pytest.warns(tl.DegeneracyWarning, match="too large"):
        y.square().sum().backward()
    assert affinity.grad.isfinite().all()
    affinity.grad = None
    y = tl.LaplacianEigenmaps(2, tl.Precomputed("affinity"), scale="unit")(affinity)
    y.abs().sum().backward()  # 10³⁰, which it can hold
    assert affinity.grad.isfinite().all()


def test_nan_of_a_loss_is_not_hidden():
    x = cloud("heavy", torch.Generator().manual_seed(3)).requires_grad_()
    (tl.LaplacianEigenmaps(2, tl.KNN(8))(x) * torch.nan).sum().backward()
    assert x.grad.isnan().any()


@every(normalization=["symmetric", "random_walk"], dense=[False, True])
def test_derivatives_in_logarithms_of_weights(dense, normalization):
    """First and second order, reverse and forward mode, of weights from 1 to e⁻⁴⁰ along a ring with chords."""
    row = torch.arange(14)
    edges = torch.cat([torch.stack([row, (row + 1) % 14]), torch.stack([row, (row + 3) % 14])], 1)
    logs = -3.0 * torch.minimum(row, 14 - row).to(DOUBLE)[edges].sum(0) + torch.linspace(0, 1, 28, dtype=DOUBLE)
    edges = torch.cat([edges, edges.flip(0)], 1)
    order = (edges[0] * 14 + edges[1]).argsort()

    def columns(logs):
        both = torch.cat([logs, logs])[order]
        graph = tl.Graph.from_edge_index(edges[:, order], both.exp())
        graph = tl.Graph.from_dense(graph.to_dense()) if dense else graph
        laplacian = tl.Laplacian(graph, normalization)
        assert laplacian.tiny_degrees.any(-1).all()
        return tl.eigenpairs(laplacian, 3).vectors / size

    size = 1.0
    size = columns(logs).detach().abs().amax(0)
    logs = logs.requires_grad_()
    assert torch.autograd.gradcheck(columns, logs, check_forward_ad=True, atol=1e-5)
    assert torch.autograd.gradgradcheck(columns, logs, atol=1e-4, rtol=1e-3, fast_mode=True)
