"""Every public differentiable function: gradients do not depend on what was asked before, in which mode and dtype.

Each line of `CASES` makes an object of one small tensor, and a number of the object that no choice of basis changes.
`REFUSED` says what is not promised: such a use raises an error with this text. A new public name must be in one of the
tables or in `EXEMPT`.
"""

import contextlib
import copy
import itertools
import pickle
from functools import partial

import pytest
import torch

import torch_lapeig as tl
from torch_lapeig import Graph, eigen, graph, losses, methods

N, STEP = 7, 1e-4
GENERATOR = torch.Generator().manual_seed(3)
NOISE = torch.randn(N, N, generator=GENERATOR, dtype=torch.float64)
C = torch.randn(12, 12, generator=GENERATOR, dtype=torch.float64)
HOLLOW = 1 - torch.eye(N, dtype=torch.float64)
POINTS = torch.randn(9, 3, generator=GENERATOR, dtype=torch.float64) * torch.tensor([4.0, 2.0, 0.7])
EDGES = ROW, COL = HOLLOW.nonzero().T
FACES = torch.tensor([[0, 1, 2], [0, 2, 3], [0, 3, 1], [1, 3, 2]])
CORNERS = torch.tensor([[0.0, 0, 0], [1, 0.1, 0], [0.2, 1, 0.1], [0.1, 0.3, 1.2]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, -1, -1, -1, -1, 1])
# Each kind of input: the tensor, and a direction in which it may change.
INPUTS = {
    "weights": ((1.2 + (NOISE + NOISE.T).sin()) * HOLLOW, (NOISE @ NOISE.T).cos() * HOLLOW / 5),
    "points": (POINTS, torch.randn(9, 3, generator=GENERATOR, dtype=torch.float64)),
    "rows": (1.1 + NOISE.sin(), NOISE.cos()),
    "matrix": (NOISE + NOISE.T, (NOISE @ NOISE.T).cos()),
    "corners": (CORNERS, torch.randn(4, 3, generator=GENERATOR, dtype=torch.float64) / 5),
    "times": (torch.tensor([0.3, 0.7], dtype=torch.float64), torch.tensor([0.5, -0.2], dtype=torch.float64)),
}


def of(pairs):
    """A smooth function of eigenpairs that depends on no basis: tr(C V (2 − Λ) Vᴴ), without products for autocast."""
    v, inner = pairs.vectors, 2 * torch.eye(len(pairs.values)).to(pairs.vectors) - pairs.projected
    kernel = (v[:, None, :, None] * inner * v[None, :, None, :].conj()).sum((2, 3))
    return (C[: len(v), : len(v)].to(kernel) * kernel).sum().real


def pairs_of(matrix, k=3, **options):
    return of(tl.eigenpairs(matrix, k, **options))


def gram(y):
    """A function of an embedding that depends on no rotation of its columns."""
    return (C[: len(y), : len(y)].to(y) * (y[:, None] * y).sum(-1)).sum()


def total(found):
    return (found.square() * C[: found.shape[-2], : found.shape[-1]].to(found)).sum()


def laplacian(w, normalization="symmetric"):
    return tl.Laplacian(Graph.from_dense(w), normalization)


def sparse(w):
    return tl.Laplacian(Graph.from_edge_index(EDGES, w[ROW, COL]))


def shifted(w):
    return eigen.SymmetricOperator(graph.DensePattern((N,)), w, torch.full_like(w[0], 12.0))


def magnetic(w):
    return tl.MagneticLaplacian(tl.DirectedGraph.from_dense(w.abs() * HOLLOW.to(w)))


def twice(y, a):
    """The product with A², which autocast leaves as it is."""
    for _ in range(2):
        y = (a[..., None] * y[..., None, :, :]).sum(-2)
    return y


def few(o):
    return tl.eigenpairs(o, 3)


def signals(o):
    return C[:N, :2].to(o.dtype)


def near(x):
    return tl.HeatKernel(6.0)(x, tl.KNN(5)(x))


def mesh(kind, x):
    stiffness, mass = tl.mesh_laplacian(x, FACES, mass=kind)
    return pairs_of(stiffness, 2, mass=mass)


def network(x):
    return torch.cat([x.sin(), x.square()], -1)


HEAT, POLYNOMIAL = methods.HeatResponse([1.0, 2]), methods.PolynomialResponse(2)
WAVES, WAVELETS = methods.WaveResponse([-1.0, 0], 1.0), tl.SpectralFilter(methods.WaveletResponse(2), bank=True)
GIVEN, K5, H6 = tl.Precomputed("affinity"), tl.KNN(5), tl.HeatKernel(6.0)
dense = Graph.from_dense
unnormalized, random_walk = (partial(laplacian, normalization=name) for name in ("unnormalized", "random_walk"))
CASES = {  # of weights: an object, which has states, and a number of it
    "Laplacian Graph eigenpairs Eigenpairs": (laplacian, pairs_of),
    "Laplacian random_walk": (random_walk, pairs_of),
    "Laplacian unnormalized": (unnormalized, pairs_of),
    "Laplacian mass": (unnormalized, lambda o: pairs_of(o, mass=3 + o.degrees.sin())),
    "Laplacian largest": (laplacian, partial(pairs_of, largest=True)),
    "Laplacian matmul": (laplacian, lambda o: total(o.matmul(signals(o)))),
    "Laplacian to_dense": (laplacian, lambda o: total(o.to_dense())),
    "SparsePattern": (sparse, pairs_of),
    "SymmetricOperator DensePattern": (shifted, pairs_of),
    "SymmetricOperator matmul": (shifted, lambda o: total(o.matmul(signals(o)))),
    "Laplacian fixed": (random_walk, partial(pairs_of, fixed=torch.tensor([1, 4]))),
    "resistance_distances": (dense, lambda g: eigen.resistance_distances(g, EDGES).sin().sum()),
    "commute times": (dense, lambda g: eigen.resistance_distances(g, EDGES, commute_time=True).sin().sum()),
    "solve_linear": (shifted, lambda o: total(eigen.solve_linear(o, signals(o)))),
    "pseudo-inverse": (unnormalized, lambda o: total(eigen.solve_linear(o, signals(o) - signals(o).mean(0)))),
    "FunctionOperator Operator": (lambda w: eigen.FunctionOperator(twice, N, [w]), pairs_of),
    "component_eigenpairs ComponentEigenpairs": (dense, lambda g: of(eigen.component_eigenpairs(g, 3)[0].pairs)),
    "normalized_cut": (dense, lambda g: tl.normalized_cut(C[:N, :2].to(g.weight).softmax(-1), g).sum()),
    "pairs spectral_function": (lambda w: few(laplacian(w)), lambda p: total(methods.spectral_function(p, torch.cos))),
    "spectral_signature HeatResponse": (laplacian, lambda o: total(tl.spectral_signature(few(o), HEAT))),
    "PolynomialResponse": (laplacian, lambda o: total(tl.spectral_signature(few(o), POLYNOMIAL))),
    "WaveResponse": (laplacian, lambda o: total(tl.spectral_signature(few(o), WAVES))),
    "SpectralFilter WaveletResponse": (laplacian, lambda o: total(WAVELETS(few(o), signals(o)))),
    "SignInvariant": (laplacian, lambda o: total(tl.SignInvariant(network)(few(o).vectors)[:, 1])),
    "StableEncoding": (laplacian, lambda o: total(tl.StableEncoding(network, network)(few(o)))),
    "canonicalize Canonical": (laplacian, lambda o: gram(methods.canonicalize(few(o)).vectors)),
}
SOLVERS = [eigen.Eigh(), eigen.Krylov(), eigen.Lobpcg(), eigen.ChebyshevSubspace(), eigen.ShiftInvert()]
SOLVERS += [eigen.Lobpcg(preconditioner=p) for p in (eigen.SparseFactors(), eigen.SmoothedAggregation())]
for solver in SOLVERS:
    kinds = f"{type(solver).__name__} {type(getattr(solver, 'preconditioner', None)).__name__}"
    CASES[kinds] = sparse, partial(pairs_of, solve=solver, tolerance=1e-10)
CASES = {name: ("weights", *case) for name, case in CASES.items()} | {
    "SignedGraph SignedLaplacian": ("matrix", lambda w: tl.SignedLaplacian(tl.SignedGraph.from_dense(w)), pairs_of),
    "DirectedGraph MagneticLaplacian": ("rows", magnetic, lambda o: of(o.eigenpairs(3))),
    "FactoredCosine": ("rows", eigen.FactoredCosine, pairs_of),
    "KNN EmbeddingModule Embedding": ("points", tl.LaplacianEigenmaps(2, K5, H6).embed, lambda y: gram(y.embedding)),
}
OF_TENSORS = {  # kind of the tensor, and a number of it
    "eigenpairs dense": ("matrix", pairs_of),
    "eigenpairs pencil": ("matrix", lambda w: pairs_of(w, mass=w.cos() / 9 + torch.eye(N).to(w))),
    "eigenpairs complex": ("matrix", lambda w: pairs_of(torch.complex(w, w.triu(1) - w.tril(-1)))),
    "eigenpairs complex pencil": (
        "matrix",
        lambda w: pairs_of(torch.complex(w, w.triu(1) - w.tril(-1)), mass=w.cos() / 9 + torch.eye(N).to(w)),
    ),
    "align Alignment": ("points", lambda x: total(tl.align(x, C[:9, :3].to(x)).embedding)),
    "eigh AllPairs": ("matrix", lambda w: total(tl.eigh(w).matrix_function(torch.cos))),
    "svd SingularTriplets": ("matrix", lambda w: tl.svd(w[:, :5], 3).S.sin().sum()),
    "eigh values": ("matrix", lambda w: tl.eigh(w).values[:3].sin().sum()),
    "mesh_laplacian MeshLaplacian": ("corners", partial(mesh, "lumped")),
    "mesh_laplacian consistent": ("corners", partial(mesh, "consistent")),
    "laplacian_positional_encoding NodeEncoding": (
        "weights",
        lambda w: gram(tl.laplacian_positional_encoding(EDGES, N, 2, w[ROW, COL]).vectors),
    ),
    "Precomputed": ("weights", lambda w: gram(tl.LaplacianEigenmaps(2, GIVEN)(w))),
    "HarmonicFunction SemiSupervised": ("weights", lambda w: total(tl.HarmonicFunction(GIVEN)(w, LABELS))),
    "LabelSpreading": ("weights", lambda w: total(tl.LabelSpreading(GIVEN)(w, LABELS))),
    "EigenmapsRegression": ("weights", lambda w: total(tl.EigenmapsRegression(3, GIVEN)(w, LABELS))),
    "pad_batch": ("points", lambda x: total(tl.pad_batch(x, torch.tensor([0] * 5 + [1] * 4))[0])),
    "products": ("points", lambda x: near(x).pattern.products(x, x.sin()).sin().sum()),
    "laplacian_smoothness": ("points", lambda x: tl.laplacian_smoothness(x, near(x))),
    "LaplacianSmoothness": ("points", lambda x: tl.LaplacianSmoothness(K5, H6)(x[:, :2], x)),
    "SpectralLoss": ("points", lambda x: tl.SpectralLoss(K5, H6)(x[:, :2], x)),
    "orthogonality": ("points", lambda x: losses.orthogonality(x, near(x))),
    "whiten": ("points", lambda x: gram(losses.whiten(x[:, :2], near(x)))),
    "Whitening": ("points", lambda x: gram(tl.Whitening(2).fit(POINTS[:, :2].to(x), K5(POINTS.to(x)))(x[:, :2]))),
}
METHODS = {
    "components": tl.LaplacianEigenmaps(2, K5, H6, components="separate"),
    "Landmarks LaplacianEigenmaps": tl.LaplacianEigenmaps(2, tl.Landmarks(6, 3), H6),
    "Radius": tl.LaplacianEigenmaps(2, tl.Radius(9.0), H6),
    "NME": tl.LaplacianEigenmaps(2, tl.KNN("nme"), H6),
    "DiffusionMap": tl.DiffusionMap(2, K5, H6),
    "SpectralClustering": tl.SpectralClustering(2, K5, H6),
    **{kernel: tl.KernelPCA(2, kernel) for kernel in ("linear", "poly")},
} | {kind.__name__: kind(2, *rule) for kind, *rule in ((tl.MDS,), (tl.KernelPCA,), (tl.Isomap, K5), (tl.LLE, K5))}
OF_TENSORS |= {name: ("points", lambda x, of=method: gram(of(x))) for name, method in METHODS.items()}
for name, method in METHODS.items():
    OF_TENSORS[f"{name} out_of_sample"] = (
        "points",
        lambda x, of=method: gram(torch.cat(of.out_of_sample(x, x[:3].cos()))),
    )
WEIGHTINGS = (tl.HeatKernel(), tl.SelfTuning(3), tl.KernelWeights(torch.special.erfcx), tl.ImprovedWeights(6.0))
for kind in (*WEIGHTINGS, tl.DensityCorrected(1.0, tl.HeatKernel(6.0))):
    OF_TENSORS[type(kind).__name__] = ("points", lambda x, of=kind: total(of(x, graph.KNN(5)(x)).to_dense()))
CASES |= {name: (kind, lambda x: x, loss) for name, (kind, loss) in OF_TENSORS.items()}
EXEMPT = {
    "an error or a warning": "ConvergenceError ConvergenceWarning DegeneracyWarning GraphWarning ResolutionWarning",
    "results or options": "InitialLayout Solve Auto Choice NullSpace RitzPairs NeighborPairs Neighbors NewEdges",
    "a solver that needs larger graphs": "TorchLobpcg",
    "a protocol": "Preconditioner Solver Weighting ExtendingRule Extension NeighborRule",
    "without derivatives": "nearest_neighbors radius_neighbors show_versions spectral_init refine_cut SimpleWeights",
    "what KNN and Radius call": "knn_graph radius_graph",
}
IN_FLOAT64 = itertools.product(("solve_linear", "pseudo-inverse"), ("in_float32", "under_autocast"))
REFUSED = dict.fromkeys(IN_FLOAT64, "must be float64")


def setup(name, dtype=torch.float64, shift=0.0):
    kind, make, loss = CASES[name]
    x, direction = (part.to(dtype) for part in INPUTS[kind])
    return make, loss, (x + shift * direction).requires_grad_(), direction


def slope(name, shift=0.0, dtype=torch.float64, mode=None, create_graph=False):
    """The derivative of a case along its direction; the object has been used before in a mode."""
    make, loss, x, direction = setup(name, dtype, shift)
    made = make(x)
    if mode is not None:
        with mode():
            loss(made)
    (gradient,) = torch.autograd.grad(loss(made), x, create_graph=create_graph)
    return (gradient * direction).sum() if not create_graph else ((gradient * direction).sum(), x, direction)


@contextlib.contextmanager
def refused(text):
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if text not in str(error):
            raise


def close(one, other, tolerance):
    one, other = (float(torch.as_tensor(value).detach()) for value in (one, other))
    assert abs(one - other) <= tolerance * (abs(other) + 1e-2), (one, other)


def without_gradients_first(name):
    for mode in (torch.no_grad, torch.inference_mode):
        close(slope(name, mode=mode), slope(name), 1e-9)


def made_in_inference(name):
    make, loss, x, _ = setup(name)
    with torch.inference_mode():
        made = make(x)
        inside = loss(made)
    close(loss(made), inside, 1e-9)


def changed_in_place(name):
    make, loss, x, direction = setup(name)
    with torch.no_grad():
        made = make(x)
        loss(made)
        x += 0.3 * direction
        with refused("changed in place"):
            found = loss(made)
            fresh, old = loss(make(x.clone())), loss(make(x - 0.3 * direction))
            close(found, min((fresh, old), key=lambda value: abs(value - found)), 1e-9)


def copied(name):
    make, loss, x, _ = setup(name)
    for way in (copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))):
        made = make(x)
        expected = loss(made)
        with refused("detach() them"):
            close(loss(way(made)), expected, 1e-9)
        with torch.no_grad():
            made = make(x)
            loss(made)
            close(loss(way(made)), expected, 1e-9)


def in_float32(name):
    close(slope(name, dtype=torch.float32), slope(name), 1e-3)


def with_both_slopes(name, dtype=torch.bfloat16, is_forward=False, is_backward=False):
    """The number of a case and both its derivatives, with autocast in some of it."""
    make, loss, x, direction = setup(name, torch.float32)
    with torch.autocast("cpu", dtype, enabled=is_forward):
        value = loss(make(x))
    with torch.autocast("cpu", dtype, enabled=is_backward):
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        (second,) = torch.autograd.grad((first * direction).sum(), x)
    return value, (first * direction).sum(), (second * direction).sum()


def under_autocast(name):
    plain = with_both_slopes(name)
    for dtype in (torch.bfloat16, torch.float16):
        for inside in ((True, False), (False, True), (True, True)):
            for found, expected in zip(with_both_slopes(name, dtype, *inside), plain, strict=True):
                assert found.dtype == torch.float32
                close(found, expected, 1e-5)


def first_order(name):
    make, loss, x, direction = setup(name)
    with torch.no_grad():
        ahead, behind = (loss(make(x + step * direction)) for step in (STEP, -STEP))
    close(slope(name), (ahead - behind) / (2 * STEP), 1e-5)


def second_order(name):
    found, x, direction = slope(name, create_graph=True)
    (second,) = torch.autograd.grad(found, x)
    close((second * direction).sum(), (slope(name, STEP) - slope(name, -STEP)) / (2 * STEP), 1e-4)


def forward_mode(name):
    make, loss, x, direction = setup(name)
    with torch.autograd.forward_ad.dual_level():
        found = loss(make(torch.autograd.forward_ad.make_dual(x.detach(), direction)))
        close(torch.autograd.forward_ad.unpack_dual(found).tangent, slope(name), 1e-8)


CHECKS = [without_gradients_first, made_in_inference, changed_in_place, copied, in_float32]
CHECKS += [under_autocast, first_order, second_order, forward_mode]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_derivatives_depend_on_no_mode(name, check):
    reason = REFUSED.get((name, check.__name__))
    with pytest.raises(TypeError, match=reason) if reason else contextlib.nullcontext():
        check(name)


def test_every_public_name_is_in_a_table():
    public = {name for room in (tl, eigen, graph, methods) for name in room.__all__}
    assert not public - {word for name in CASES for word in name.split()} - set(" ".join(EXEMPT.values()).split())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_backward_method_inside_of_autocast(dtype):
    """The gradient of `.backward()`, which also reaches parameters, and autocast is on again after it."""
    gradients = []
    for enabled in (False, True):
        weights = tl.HeatKernel(learnable=True)
        x = POINTS.float().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=enabled):
            tl.LaplacianEigenmaps(2, tl.KNN(5), weights)(x).pow(4).sum().backward()
            assert torch.is_autocast_enabled("cpu") == enabled
            assert (x @ x.mT).dtype == (dtype if enabled else torch.float32)
        gradients.append((x.grad, weights.log_factor.grad))
    for off, on in zip(*gradients, strict=True):
        assert torch.dist(off, on) <= 1e-5 * off.norm()


def test_the_network_around_stays_in_half_precision():
    """Only what the library computes is kept from autocast, in backward as in forward."""
    seen = []
    linear = torch.nn.Linear(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = linear(POINTS.float())
        hidden.grad_fn.register_prehook(lambda _: seen.append(torch.is_autocast_enabled("cpu")))
        tl.LaplacianEigenmaps(2, tl.KNN(5))(hidden).float().square()[:, 0].mul(torch.arange(9)).sum().backward()
    assert seen == [True]
