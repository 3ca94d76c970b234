"""The table of combinations: what each producer gives is taken rightly by each consumer, or refused by name.

All cells are the product of the lists: of `combined.py`, and of consumers here. A cell is right against the producer's
dense reference unless a row of `combined.REFUSALS` has it. A new feature is one line in a list.
"""

import ast
import fnmatch
import functools
import re
from pathlib import Path

import combined
import pytest
import scipy.linalg
import torch
from combined import EIGENPAIRS, GRAPHS, METHODS, OF_POINTS, OPERATORS, PAGE, RULES, WEIGHTINGS, K, N, laplacian, shaped
from matplotlib.figure import Figure
from scipy.sparse.csgraph import connected_components, shortest_path

import torch_lapeig as tl
from problems import distances, grams, saved_and_loaded, sheet
from torch_lapeig import eigen, methods
from torch_lapeig.losses import orthogonality, spectral_loss, whiten
from torch_lapeig.plots import plot_embedding, plot_graph, plot_spectrum
from torch_lapeig.samplers import EdgeSampler, NeighborhoodSampler
from torch_lapeig.support.kinds import REFUSES, rows_of

close = functools.partial(torch.testing.assert_close, rtol=1e-6, atol=1e-8)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- Consumers of graphs ----------------------------------------------------------------------------------------------


def conversions(made):
    close(made.value.to_dense(), shaped(made.matrix, made))
    close(made.value.to_sparse().to_dense(), shaped(made.matrix, made))
    loaded = saved_and_loaded(made.value)
    assert type(loaded) is type(made.value)
    close(loaded.to_dense(), made.value.to_dense())


def parts(made):
    found = made.value.connected_components().reshape(made.nodes.shape)
    for labels, matrix, nodes in zip(found, made.matrix, made.nodes, strict=True):
        expected = connected_components(matrix[nodes][:, nodes].abs().numpy(), directed=False)[1]
        assert labels[nodes].tolist() == expected.tolist()
        assert (labels[~nodes] == -1).all()
    some = torch.tensor([3, 0, 2])
    close(made.value.subgraph(some).to_dense(), made.matrix[0][some][:, some])


def dense(graph):
    """The matrix of a graph, also of one that is sharded on one process."""
    if not graph.pattern.is_sharded:
        return graph.to_dense()
    n, (row, col) = graph.num_nodes, (graph.pattern.row.long(), graph.pattern.col.long())
    weight = graph.weight
    if graph.similarity is not None:
        weight = graph.similarity[row] * weight / graph.similarity[col]
    return weight.new_zeros(n, n).index_put((row, col), weight)


def laplacians(made):
    affinity, degrees = shaped(made.matrix, made), shaped(made.matrix.sum(-1), made)
    root = torch.where(degrees > 0, degrees, 1).sqrt()
    x = numbers(*degrees.shape, 2)
    sides = {"unnormalized": (1, 1), "random_walk": (root.square(), 1), "symmetric": (root, root)}
    for normalization, both in sides.items():
        left, right = (torch.as_tensor(part).expand(degrees.shape) for part in both)
        found = tl.Laplacian(made.value, normalization)
        if normalization == "symmetric" and made.value.similarity is not None:  # of the symmetric affinity
            continue
        expected = laplacian(affinity) / left[..., None] / right[..., None, :]
        close(found.matmul(x), expected @ x)
        if not made.value.pattern.is_sharded:
            close(found.to_dense(), expected)


def walk(made):
    """The spectra of L y = λ D y of each item."""
    degrees = made.matrix.sum(-1)
    symmetric = made.matrix
    if made.value.similarity is not None:
        r = made.value.similarity.reshape(degrees.shape)
        symmetric, degrees = symmetric / r[..., None].square(), degrees / r.square()
    active = degrees > 0
    root = torch.where(active, degrees, 1).sqrt()
    found = torch.zeros(*degrees.shape, K).double(), torch.full((len(degrees), K), torch.inf).double()
    for b, at in enumerate(active):
        normal = (torch.diag(degrees[b]) - symmetric[b])[at][:, at] / (root[b][at][:, None] * root[b][at])
        values, vectors = torch.linalg.eigh((normal + normal.mT) / 2)
        k = min(K, len(values))
        found[0][b, at, :k] = vectors[:, :K] / root[b][at][:, None]
        found[1][b, :k] = values[:K]
    return found


def of_walk(made):
    found, (y, values) = tl.eigenpairs(tl.Laplacian(made.value, "random_walk"), K, fill=True), walk(made)
    close(found.values, shaped(values, made))
    close(found.vectors @ found.vectors.mT, shaped(y @ y.mT, made))


def by_components(made):
    for normalization in ("random_walk", "unnormalized"):
        found = eigen.component_eigenpairs(made.value, 2, normalization)
        groups, flat = made.value.nodes_of_components(), torch.block_diag(*made.matrix)
        assert len(groups) == len(found)
        for part, nodes in zip(found, groups, strict=True):
            close(part.nodes, nodes)
            matrix = laplacian(flat[nodes][:, nodes])
            matrix = matrix / flat[nodes].sum(1)[:, None] if normalization == "random_walk" else matrix
            close(part.pairs.values, torch.linalg.eigvals(matrix).real.sort().values[: len(part.pairs.values)])


def smoothness(made):
    y = numbers(*made.value.shape, 2)
    squares = torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist").square()
    expected = (shaped(made.matrix, made) * squares).sum() / 2
    close(tl.laplacian_smoothness(y, made.value, "sum"), expected)
    count = int((made.matrix * (1 - torch.eye(made.matrix.shape[-1])) > 0).sum())
    close(tl.LaplacianSmoothness()(y, made.value), expected / max(count, 1))


def of_degrees(made):
    """Each item's D, and columns that are centred and whitened in it, ``(B, N, 2)``."""
    y = numbers(*made.value.shape, 2).reshape(*made.nodes.shape, 2)
    degrees = made.matrix.sum(-1)
    white = []
    for one, d in zip(y, degrees, strict=True):
        rest = one - (d[:, None] * one).sum(0) / d.sum().clamp_min(1e-300)
        factor = torch.linalg.cholesky(rest.mT @ (d[:, None] * rest) + (d.sum() == 0) * torch.eye(2))
        white.append(torch.linalg.solve_triangular(factor, rest.mT, upper=False).mT)
    return y, degrees, torch.stack(white)


def orthogonal(made):
    found = orthogonality(numbers(*made.value.shape, 2), made.value)
    y, degrees, _ = of_degrees(made)
    has = degrees.sum(-1) > 0
    moments = (y[has].mT @ (degrees[has][..., None] * y[has])) / degrees[has].sum(-1)[:, None, None]
    close(found, (moments - torch.eye(2)).square().sum((1, 2)).mean())


def whitened(made):
    found = whiten(numbers(*made.value.shape, 2), made.value)
    _, degrees, expected = of_degrees(made)
    has, found = degrees.sum(-1) > 0, found.reshape(expected.shape)
    close(found[has], (expected * made.nodes[..., None])[has], atol=1e-5, rtol=1e-5)


def resistances(made):
    ends = torch.tensor([[0, 1, 2, 3, 0], [3, 2, 1, 3, made.nodes.shape[1] - 1]])
    found = eigen.resistance_distances(made.value, ends)
    inverse = torch.linalg.pinv(laplacian(made.matrix[0]), hermitian=True)
    expected = inverse.diagonal()[:, None] + inverse.diagonal() - 2 * inverse
    labels = made.value.to_sparse().connected_components()
    for one, (i, j) in zip(found, ends.mT, strict=True):
        is_apart = i != j and (labels[i] != labels[j] or labels[i] < 0)
        close(one, torch.tensor(torch.inf).double() if is_apart else expected[i, j])


def whitening_map(made):
    model = tl.Whitening(2).fit(numbers(*made.value.shape, 2), made.value)
    y, _, expected = of_degrees(made)
    found = model(shaped(y, made))  # whitened, up to a rotation
    close(found @ found.mT, shaped(expected @ expected.mT, made), atol=1e-5, rtol=1e-5)


def spectral(made):
    found = [loss(numbers(*made.value.shape, 2), made.value) for loss in (spectral_loss, tl.SpectralLoss())]
    _, degrees, white = of_degrees(made)
    has = degrees.sum(-1) > 0
    expected = (white[has].mT @ laplacian(made.matrix[has]) @ white[has]).diagonal(dim1=1, dim2=2).sum(1).mean()
    for one in found:
        close(one, expected, atol=1e-5, rtol=1e-5)


def halves(made):
    """A label of two clusters for each node."""
    return (torch.arange(made.nodes.shape[1]) % 3 == 0).long().expand(made.nodes.shape)


def cut_of(made, labels):
    total = torch.zeros(len(labels), dtype=torch.float64)
    for b, (own, w) in enumerate(zip(labels, made.matrix, strict=True)):
        for cluster in own.unique():
            inside = own == cluster
            if (volume := w[inside].sum()) > 0:
                total[b] += w[inside][:, ~inside].sum() / volume
    return total


def cuts(made):
    labels = halves(made)
    close(tl.normalized_cut(labels.reshape(made.value.shape), made.value), cut_of(made, labels).reshape(made.lead))
    soft = torch.stack([labels == 0, labels == 1], -1).double()
    close(tl.normalized_cut(shaped(soft, made), made.value), cut_of(made, labels).reshape(made.lead))


def refined(made):
    labels = halves(made)
    found = methods.refine_cut(shaped(labels, made), made.value).reshape(labels.shape)
    before, after = cut_of(made, labels), cut_of(made, found)
    assert (after <= before + 1e-12).all()
    for b, node in found.nonzero()[:4].tolist():  # no move of one node gains anything
        moved = found.clone()
        moved[b, node] = 0
        assert cut_of(made, moved)[b] >= after[b] - 1e-9 or not (moved[b] > 0).any()


def start(made):
    found = tl.spectral_init(made.value, 2, seed=0)
    component = made.value.connected_components()
    assert torch.equal(found.component, component)
    for part in component.unique():
        nodes = (component == part).nonzero().flatten()
        if len(nodes) < 4:
            continue
        w = made.matrix[0][nodes][:, nodes]
        root = w.sum(1).sqrt()
        values, vectors = torch.linalg.eigh(laplacian(w) / (root[:, None] * root))
        close(found.eigenvalues[part], values[1:3], atol=1e-6, rtol=0)
        y = found.embedding[nodes] - found.embedding[nodes].mean(0)
        v = vectors[:, 1:3] - vectors[:, 1:3].mean(0)
        share = (y * v).sum(0).square() / y.square().sum(0) / v.square().sum(0)
        assert share.min() > 0.999


def neighborhoods(made):
    edges = made.matrix[0] > 0
    nodes = made.nodes[0].nonzero().flatten().tolist()
    seen = set()
    for chosen in NeighborhoodSampler(made.value, 4, neighbors=3):
        seen |= set(chosen)
        assert any(all(other == centre or edges[centre, other] for other in chosen) for centre in chosen)
    assert seen == set(nodes)


def sampled_edges(made):
    for chosen in EdgeSampler(made.value, 4):
        assert all(made.matrix[0][chosen[i], chosen[i + 1]] > 0 for i in (0, 2))


def kernel_of(x, t=0.5):
    return (-(x[..., :, None, :] - x[..., None, :, :]).square().sum(-1) / t).exp()


def weighted(weights, expected):
    def consume(made):
        x = sheet(made.nodes.shape[1]).expand(*made.nodes.shape, 3)
        found = weights(shaped(x, made), made.value)
        close(dense(found), shaped(expected(x, made.matrix), made))

    return consume


def density_corrected(x, w):
    kernel = w * kernel_of(x)
    q = kernel.sum(-1)
    scale = torch.where(q > 0, q, 1) ** -0.5
    return kernel * scale[..., None] * scale[..., None, :]


def by_counts(x, w):
    proper = w * (1 - torch.eye(w.shape[-1]))
    return w * kernel_of(x) / (proper > 0).sum(-1).clamp_min(1)[..., None, :]


def self_tuned(x, w):
    squared = (x[..., :, None, :] - x[..., None, :, :]).square().sum(-1)
    there = w * (1 - torch.eye(w.shape[-1])) > 0
    lengths = torch.where(there, squared, torch.inf).sort(-1).values
    place = (there.sum(-1) - 1).clamp(0, 1)
    sigma = lengths.gather(-1, place[..., None])[..., 0]
    sigma = torch.where(sigma.isinf(), 1, sigma).sqrt()
    return w * (-squared / (sigma[..., :, None] * sigma[..., None, :])).exp()


def eigenmaps(made):
    model = tl.LaplacianEigenmaps(K, tl.Precomputed("affinity"), drop_trivial=False)
    y = walk(made)[0]
    found = model(made.value)
    close(found @ found.mT, shaped(y @ y.mT, made))
    if len(made.nodes) == 1:
        fitted = model.fit(made.value)
        close(fitted.transform(made.matrix[0]), fitted.embedding_)
        close(fitted.frozen()(made.matrix[0]), fitted.embedding_)


def diffusion(made):
    found = tl.DiffusionMap(K - 1, tl.Precomputed("affinity"))(made.value)
    q = made.matrix.sum(-1)
    scale = torch.where(q > 0, 1 / torch.where(q > 0, q, 1), 0)
    matrix = made.matrix * scale[..., None] * scale[..., None, :]
    y, values = walk(type(made)(tl.Graph.from_dense(matrix), set(), matrix))
    # The first columns of a disconnected graph are any basis, of one eigenvalue.
    y = y * torch.where(values.isinf(), 0, (1 - values).abs())[:, None]
    one = torch.where(matrix.sum((1, 2)) > 0, matrix.sum((1, 2)), 1).rsqrt()[:, None, None]
    constant = torch.where(matrix.sum(-1, keepdim=True) > 0, one, 0)
    close(found @ found.mT, shaped(y @ y.mT - constant @ constant.mT, made))


def clusters(made):
    y = walk(made)[0]
    model = tl.SpectralClustering(K, tl.Precomputed("affinity"), variant="shi_malik", assign_labels="cluster_qr")
    found = model(made.value)
    close(found @ found.mT, shaped(y @ y.mT, made))
    if len(made.nodes) == 1:
        labels = model.fit(made.value).labels_
        assert torch.equal(labels >= 0, made.matrix[0].sum(1) > 0)


def few_labels(made):
    labels = torch.full(made.nodes.shape, -1)
    labels[:, 0], labels[:, 3] = 0, 1
    return shaped(labels, made), torch.nn.functional.one_hot(labels + 1, 3)[..., 1:].double()


def reached(made, targets):
    """Nodes that a path joins to a label, bool ``(B, N)``."""
    found = targets.any(-1)
    for _ in range(found.shape[1]):
        found = found | ((made.matrix > 0) & found[:, None]).any(-1)
    return found[..., None]


def harmonic(made):
    labels, targets = few_labels(made)
    expected = targets.clone()
    for b, (w, there) in enumerate(zip(made.matrix, reached(made, targets), strict=True)):
        free = (there[:, 0] & ~targets[b].any(-1)).nonzero().flatten()
        matrix = laplacian(w)
        if len(free):
            expected[b, free] = torch.linalg.solve(matrix[free][:, free], w[free] @ targets[b])
    model = tl.HarmonicFunction(tl.Precomputed("affinity"), class_prior=None)
    close(model(made.value, labels), shaped(expected, made))
    numbers = expected - 0.3 * reached(made, targets)  # known elsewhere, as they do not reach there
    unknown = reached(made, targets) & ~targets.any(-1, keepdim=True)
    given = shaped(numbers.masked_fill(unknown, torch.nan), made)
    close(model(made.value, targets=given), shaped(numbers, made))


def spreading(made):
    labels, targets = few_labels(made)
    d = made.matrix.sum(-1)
    root = torch.where(d > 0, d, 1).sqrt()
    system = torch.eye(d.shape[1]) - 0.9 * made.matrix / (root[..., None] * root[..., None, :])
    expected = torch.linalg.solve(system, 0.1 * targets)
    close(tl.LabelSpreading(tl.Precomputed("affinity"), alpha=0.9)(made.value, labels), shaped(expected, made))


def regression(made):
    labels, targets = few_labels(made)
    y, known = walk(made)[0], targets.any(-1, keepdim=True)
    gram = (y * known).mT @ (y * known)
    size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    ridge = 1e-2 * torch.where(size > 0, size, 1) * torch.eye(K)
    expected = y @ torch.linalg.solve(gram + ridge, y.mT @ targets) * reached(made, targets)
    model = tl.EigenmapsRegression(K, tl.Precomputed("affinity"), ridge=1e-2)
    close(model(made.value, labels), shaped(expected, made))


def drawn_graph(made):
    axes = plot_graph(made.value, sheet(made.nodes.shape[1])[:, :2], axes=Figure().subplots())
    joined = (made.matrix[0] != 0) | (made.matrix[0].mT != 0)
    place = {tuple(one): i for i, one in enumerate(sheet(made.nodes.shape[1])[:, :2].tolist())}
    drawn = {frozenset(place[tuple(end)] for end in one.tolist()) for one in axes.collections[0].get_segments()}
    assert drawn == {frozenset(pair) for pair in joined.triu(1).nonzero().tolist()}


def signed(made):
    degrees = made.matrix.abs().sum(-1)
    found = tl.SignedLaplacian(made.value, "unnormalized").to_dense()
    close(found, shaped(torch.diag_embed(degrees) - made.matrix, made))


def directed(made):
    degrees = ((made.matrix + made.matrix.mT) / 2).sum(-1)
    found = tl.MagneticLaplacian(made.value, 0.0, "unnormalized").to_dense()
    close(found.real, shaped(torch.diag_embed(degrees) - (made.matrix + made.matrix.mT) / 2, made))


OF_GRAPHS = {
    "conversions": conversions,
    "components, subgraph": parts,
    "Laplacian": laplacians,
    "eigenpairs": of_walk,
    "component_eigenpairs": by_components,
    "SignedLaplacian": signed,
    "MagneticLaplacian": directed,
    "laplacian_smoothness": smoothness,
    "orthogonality": orthogonal,
    "whiten": whitened,
    "Whitening": whitening_map,
    "resistance_distances": resistances,
    "spectral_loss": spectral,
    "normalized_cut": cuts,
    "refine_cut": refined,
    "spectral_init": start,
    "NeighborhoodSampler": neighborhoods,
    "EdgeSampler": sampled_edges,
    "weighting, simple": weighted(tl.SimpleWeights(), lambda x, w: w),
    "weighting, kernel": weighted(tl.KernelWeights(lambda d2: (-d2 / 0.5).exp()), lambda x, w: w * kernel_of(x)),
    "weighting, heat": weighted(tl.HeatKernel(0.5), lambda x, w: w * kernel_of(x)),
    "weighting, self-tuning": weighted(tl.SelfTuning(2), self_tuned),
    "weighting, density": weighted(tl.DensityCorrected(0.5, tl.HeatKernel(0.5)), density_corrected),
    "weighting, ImprovedWeights": weighted(tl.ImprovedWeights(0.5), by_counts),
    "LaplacianEigenmaps": eigenmaps,
    "DiffusionMap": diffusion,
    "SpectralClustering": clusters,
    "HarmonicFunction": harmonic,
    "LabelSpreading": spreading,
    "EigenmapsRegression": regression,
    "plot_graph": drawn_graph,
}


# --- Consumers of operators -------------------------------------------------------------------------------------------


def solved(solver=None):
    def consume(made):
        found = made.pairs(made.value, K, solver, tolerance=1e-9)
        expected = made.values()
        close(found.values, expected.reshape(found.values.shape))
        y = found.vectors.reshape(*made.matrix.shape[:2], K)
        close(y @ y.mH, made.function(torch.ones_like))
        assert found.converged.all()

    return consume


def second_mass(made):
    """A mass of a problem that has none."""
    mass = 0.5 + torch.rand(made.value.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = tl.eigenpairs(made.value, K, mass=mass)
    total = mass * made.mass[0] if "similarity" in made.kinds else mass
    own = type(made)(made.value, set(), made.matrix, total, made.nodes)
    close(found.values, shaped(own.values(), made))
    assert found.inner_product in ("mass", "similarity")


def largest(made):
    solve = tl.eigenpairs if made.matrix.is_complex() else made.pairs
    found = solve(made.value, K, largest=True)
    expected = torch.stack([values.flip(0)[:K] for _, values, _ in made.spectra()])
    close(found.values, expected.reshape(found.values.shape))


def mass_matrix(made):
    n = made.matrix.shape[-1]
    root = torch.randn(n, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mass = root @ root.mT / n + torch.eye(n, dtype=torch.float64)
    found = tl.eigenpairs(made.value, K, mass=mass.to_sparse())
    ((at, _, _),) = made.spectra()
    pencil = (matrix[at][:, at].numpy() for matrix in (made.matrix[0], mass))
    close(found.values, torch.from_numpy(scipy.linalg.eigh(*pencil, eigvals_only=True)[:K]))


def linear(made):
    rhs = numbers(*made.value.shape, 2)
    found = eigen.solve_linear(made.value, rhs)
    close(found, torch.linalg.solve(made.matrix, rhs.reshape(*made.matrix.shape[:2], 2)).reshape(rhs.shape))


OF_OPERATORS = {
    "eigenpairs": solved(),
    "Eigh": solved(eigen.Eigh()),
    "ChebyshevSubspace": solved(eigen.ChebyshevSubspace()),
    "Krylov": solved(eigen.Krylov()),
    "Lobpcg": solved(eigen.Lobpcg(preconditioner=None)),
    "Lobpcg, multigrid": solved(eigen.Lobpcg()),
    "ShiftInvert": solved(eigen.ShiftInvert()),
    "eigenpairs, mass": second_mass,
    "eigenpairs, mass matrix": mass_matrix,
    "eigenpairs, largest": largest,
    "solve_linear": linear,
}


# --- Consumers of eigenpairs ------------------------------------------------------------------------------------------


def heat(values):
    return (-values).exp()


def count_of(made):
    return made.value.values.shape[-1]


def matrices(made):
    u = made.value.vectors
    found = u @ methods.spectral_function(made.value, heat)[..., 0, :, :] @ u.mH
    close(found, shaped(made.function(heat, count_of(made)), made))


def signatures(made):
    found = tl.spectral_signature(made.value, methods.HeatResponse([1.0]))
    assert not found.is_complex()
    close(found[..., 0], shaped(made.function(heat, count_of(made)).diagonal(dim1=1, dim2=2).real, made))
    trace = heat(made.values(count_of(made))).sum(-1)
    share = tl.spectral_signature(made.value, methods.HeatResponse([1.0]), normalize=True)
    close(share[..., 0], found[..., 0] / trace.reshape(*made.lead, 1))


def waves(made):
    def band(values):
        positive = values > 1e-9
        return torch.where(positive, (-(0.5 - torch.where(positive, values, 1).log()).square() / 2).exp(), 0)

    found = tl.spectral_signature(made.value, methods.WaveResponse([0.5], 1.0))
    close(found[..., 0], shaped(made.function(band, count_of(made)).diagonal(dim1=1, dim2=2).real, made), atol=1e-6)


def filtered(x_of):
    def consume(made):
        x = x_of(*made.value.vectors.shape[:-1], 2)
        expected = made.function(heat, count_of(made))
        flat = x.reshape(*made.matrix.shape[:2], 2)
        dtype = torch.promote_types(expected.dtype, flat.dtype)
        close(tl.SpectralFilter(heat)(made.value, x), (expected.to(dtype) @ flat.to(dtype)).reshape(x.shape))

    return consume


def bank(made):
    x = numbers(*made.value.vectors.shape[:-1], 1)
    values = made.values(count_of(made))
    bound = float(values[values.isfinite()].abs().max()) + 1
    found = tl.SpectralFilter(methods.WaveletResponse(1, bound), bank=True)(made.value, x)
    p = [lambda v: 1 - v / bound, lambda v: (1 - v / bound) ** 2]
    one, first, second = (made.function(f, count_of(made)) for f in (torch.ones_like, *p))
    expected = torch.stack([one - first, first - second, second], -1).movedim(-1, 1)
    expected = (expected @ x.reshape(len(expected), 1, -1, 1).to(expected))[..., 0].movedim(1, -1)
    close(found, expected.reshape(found.shape))


def encoded(made):
    expected = made.function(heat, count_of(made)).abs().square().sum(-1)
    for columns in (None, 5):
        found = tl.StableEncoding(methods.HeatResponse([1.0]), lambda a: a.abs().square(), columns=columns)(made.value)
        assert not found.is_complex()
        close(found[..., 0], shaped(expected, made))


def encoded_by_network(made):
    rho = torch.nn.Linear(1, 1).double()
    found = tl.StableEncoding(methods.HeatResponse([1.0]), rho)(made.value)
    expected = rho(made.function(heat, count_of(made))[..., None]).sum(-2)
    close(found, shaped(expected, made))


def canonical(made):
    found = methods.canonicalize(made.value)
    u = made.value.vectors
    close(found.vectors @ found.vectors.mH, u @ u.mH)
    # A unitary change of basis changes nothing that is unique.
    turn = torch.linspace(0.3, 2, u.shape[-1]).double()
    phase = torch.polar(torch.ones_like(turn), turn) if u.is_complex() else turn.sin().sign() * (turn - 1).sign()
    other = methods.canonicalize(type(made.value)(**{**vars(made.value), "vectors": u * phase}))
    keep = found.unique[..., None, :].expand(u.shape)
    close(other.vectors[keep], found.vectors[keep])
    for b, (at, _, v) in enumerate(made.spectra()):  # the direction of P x for the largest group of ‖P e_i‖
        own, first = found.vectors.reshape(*made.matrix.shape[:2], -1)[b][at], v[:, 0]
        if found.unique.reshape(len(made.matrix), -1)[b, 0] and (first[:, None] * first).abs().sum() > 0:
            close((own[:, 0].conj() @ first).abs(), torch.ones(()).double())


def sign_invariant(made):
    phi = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.SiLU()).double()
    found = methods.SignInvariant(phi)(made.value.vectors)
    v = made.value.vectors[..., None]
    close(found, phi(v) + phi(-v))
    flipped = methods.SignInvariant(phi)(-made.value.vectors)
    close(flipped, found)


def drawn_pairs(made):
    axes = plot_embedding(made.value, axes=Figure().subplots())
    places = torch.as_tensor(axes.collections[-1].get_offsets().data)
    expected = made.value.vectors[:, :2] if "largest" in made.kinds else made.value.vectors[:, 1:3]
    assert torch.cdist(places, expected).amin(0).max() < 1e-7
    assert len(places) == len(expected)


def drawn_spectrum(made):
    axes = plot_spectrum(made.value, axes=Figure().subplots())
    drawn = [torch.as_tensor(line.get_ydata()) for line in axes.lines]
    k = count_of(made)
    for values in made.values(k + 1):  # the next one is a hollow dot
        expected = values[:k][values[:k].isfinite()]
        assert any(len(y) == len(expected) and (y - expected).abs().max() < 1e-8 for y in drawn)
        near = [(y - values[k]).abs() < 0.1 * made.value.gap.max() for y in drawn if len(y) == 1]
        assert values[k].isinf() or any(near)


OF_PAIRS = {
    "spectral_function": matrices,
    "spectral_signature": signatures,
    "wave signature": waves,
    "SpectralFilter": filtered(numbers),
    "SpectralFilter, complex signal": filtered(lambda *shape: torch.complex(numbers(*shape), numbers(*shape, seed=1))),
    "wavelets": bank,
    "StableEncoding": encoded,
    "StableEncoding, real network": encoded_by_network,
    "canonicalize": canonical,
    "SignInvariant": sign_invariant,
    "plot_embedding": drawn_pairs,
    "plot_spectrum": drawn_spectrum,
}


# --- Consumers of methods ---------------------------------------------------------------------------------------------


STORED = tl.Precomputed("distance")


class Fit:
    """A method with its rule and weighting, points or affinities for it, and its fit."""

    def __init__(self, make):
        self.make, self.model = make, make()
        self.labels = (combined.LABELS,) if isinstance(self.model, methods.SemiSupervised) else ()
        self.x, self.new = self.set()

    def set(self, seed=0):
        x, new = sheet(N, seed=seed), sheet(combined.NEW, seed=seed + 1)
        if self.model.pairs_given is None:
            return x, new
        both = torch.cat([x, new])
        given = distances(both) if self.model.pairs_given == "distance" else kernel_of(both)
        rule = getattr(self.model, "neighbors", None)
        stored = given[:N, :N].sparse_mask((tl.KNN(6)(x).to_dense() > 0).to_sparse()) if rule == STORED else None
        return given[:N, :N] if stored is None else stored, given[N:, :N]

    def forward(self, model, x, mask=None):
        shape = x.shape if isinstance(x, tl.Graph) else x.shape[:-1]
        labels = [one[: shape[-1]].expand(shape) for one in self.labels]
        return model(x, *labels, mask=mask)

    @functools.cached_property
    def rows(self):
        self.model.fit(self.x, *self.labels)
        return getattr(self.model, self.model.FITTED[0])

    @functools.cached_property
    def rows_new(self):
        assert len(self.rows)
        return self.model.transform(self.new)


def affinities_of(rule, weights, x):
    """The graph whose matrix the method decomposes; that of landmarks is made of shares of points, C Z Λ⁻¹ Zᵀ C."""
    weights = tl.HeatKernel() if weights is None else weights
    if not isinstance(rule, tl.Landmarks):
        return weights(x, rule(x))
    landmarks = rule.of_points(x)
    edges = rule.edges(x, landmarks)
    state = rule.state(weights, x, landmarks, edges)
    z = torch.zeros(len(x), len(landmarks), dtype=x.dtype)
    z[edges.query, edges.point] = weights.extend(edges, state).exp()
    z = z / z.sum(1, keepdim=True)
    counts = torch.ones(len(x), dtype=x.dtype)
    if isinstance(weights, tl.DensityCorrected):
        counts = z @ (state[:, 0] - state[:, 0].mean()).exp()
    w = counts[:, None] * (z / (z.mT @ counts)) @ z.mT * counts
    return tl.Graph.from_dense((w + w.mT) / 2)


def columns(fit):
    """The rows are those of the same method on the matrix of affinities, which `OF_GRAPHS` holds to dense formulas."""
    found, model = fit.forward(fit.model, fit.x), fit.model
    close(fit.rows, found)
    if model.pairs_given is not None:
        return
    is_counted, weights = isinstance(model.neighbors, tl.Landmarks), model.weights
    if isinstance(model, tl.DiffusionMap) and not is_counted:
        weights = weights.weights  # K, which the reference corrects
    given = fit.make(tl.Precomputed("affinity"), None)
    if isinstance(model, tl.DiffusionMap) and is_counted:
        given = tl.LaplacianEigenmaps(2, tl.Precomputed("affinity"), diffusion=model.time)
    expected = fit.forward(given, affinities_of(model.neighbors, weights, fit.x))
    close(grams(found), grams(expected))


def on_known_points(fit):
    rows = fit.rows
    # Of given pairs, label methods cannot see which label was given.
    if not (isinstance(fit.model, methods.SemiSupervised) and fit.model.pairs_given == "affinity"):
        close(fit.model.transform(fit.x), rows)


def frozen(fit):
    expected, made = fit.rows_new, fit.model.frozen()
    close(made(fit.new), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    close(made(fit.x), fit.model.transform(fit.x), rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def out_of_sample(fit):
    rows, rows_new = fit.model.out_of_sample(fit.x, *fit.labels, fit.new)
    close(rows, fit.rows)
    close(rows_new, fit.rows_new)


def saved(fit):
    expected, other = fit.rows_new, fit.make()
    other.load_state_dict(saved_and_loaded(fit.model.state_dict()))
    close(other.transform(fit.new), expected, rtol=0, atol=0)


def in_a_batch(fit):
    """Items of a batch, the second with padding that holds NaN, are as alone."""
    n, other = N - 4, fit.set(seed=5)[0].clone()
    mask = torch.arange(N) < torch.tensor([[N], [n]])
    short = other[:n] if fit.model.pairs_given is None else other[:n, :n]
    other[n:] = torch.nan
    if fit.model.pairs_given is not None:
        other[:, n:] = torch.nan
    found = fit.forward(fit.model, torch.stack([fit.x, other]), mask)
    close(grams(found[0]), grams(fit.forward(fit.model, fit.x)))
    close(grams(found[1, :n]), grams(fit.forward(fit.model, short)))
    assert not found[1, n:].any()


def streamed(fit):
    close(fit.make().fit_stream(fit.x).transform(fit.new), fit.rows_new)


def top(kernel):
    """√Λ V of the two largest pairs of a centred kernel, as a matrix Y Yᵀ."""
    centre = torch.eye(N, dtype=torch.float64) - 1 / N
    values, vectors = torch.linalg.eigh(centre @ kernel @ centre)
    return (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].mT


def geodesics(x):
    graph = tl.KNN(6, "union")(x)
    lengths = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") * (graph.to_dense() > 0)
    return torch.from_numpy(shortest_path(lengths.numpy(), directed=False))


def reconstructed(x):
    """Projector on the bottom pairs of (I − W)ᵀ (I − W), without the constant one."""
    near = torch.cdist(x, x).fill_diagonal_(torch.inf).topk(6, largest=False).indices
    weight = torch.zeros(N, N).double()
    for i in range(N):
        rest = x[near[i]] - x[i]
        gram = rest @ rest.mT
        one = torch.linalg.solve(gram + 1e-3 * gram.trace() * torch.eye(6), torch.ones(6).double())
        weight[i, near[i]] = one / one.sum()
    vectors = torch.linalg.eigh((torch.eye(N) - weight).mT @ (torch.eye(N) - weight))[1][:, 1:3]
    return vectors @ vectors.mT


REFERENCES = {
    "MDS": lambda x: top(x @ x.mT),
    "Isomap": lambda x: top(-geodesics(x).square() / 2),
    "LLE": reconstructed,
    "KernelPCA": lambda x: top(kernel_of(x, 1 / 0.3)),
    "KernelPCA, poly": lambda x: top((x @ x.mT / 3 + 1) ** 2),
    "MDS, of distances": lambda x: top(-x.square() / 2),
    "KernelPCA, of a kernel": top,
}


def as_formula(name):
    def columns(fit):
        close(grams(fit.forward(fit.model, fit.x)), REFERENCES[name](fit.x))
        close(fit.rows, fit.forward(fit.model, fit.x))

    return columns


OF_FITS = {"columns": columns, "transform": on_known_points, "frozen": frozen}
OF_PAIRED_FITS = {"out_of_sample": out_of_sample, "state_dict": saved, "batch": in_a_batch, "fit_stream": streamed}


# --- Doors ------------------------------------------------------------------------------------------------------------

NODES, COLUMNS = torch.zeros(12, dtype=torch.int64), torch.zeros(12, 2, dtype=torch.float64)
DOORS = {
    "graph": {
        "Laplacian": tl.Laplacian,
        "component_eigenpairs": lambda v: eigen.component_eigenpairs(v, 2),
        "SignedLaplacian": tl.SignedLaplacian,
        "MagneticLaplacian": tl.MagneticLaplacian,
        "laplacian_smoothness": lambda v: tl.laplacian_smoothness(COLUMNS, v),
        "LaplacianSmoothness": lambda v: tl.LaplacianSmoothness(tl.Precomputed("affinity"))(COLUMNS, v),
        "SpectralLoss": lambda v: tl.SpectralLoss(tl.Precomputed("affinity"))(COLUMNS, v),
        "orthogonality": lambda v: orthogonality(COLUMNS, v),
        "whiten": lambda v: whiten(COLUMNS, v),
        "Whitening": lambda v: tl.Whitening(2).fit(COLUMNS, v),
        "spectral_loss": lambda v: spectral_loss(COLUMNS, v),
        "normalized_cut": lambda v: tl.normalized_cut(NODES, v),
        "refine_cut": lambda v: methods.refine_cut(NODES, v),
        "spectral_init": tl.spectral_init,
        "resistance_distances": lambda v: eigen.resistance_distances(v, torch.zeros(2, 1, dtype=torch.int64)),
        "NeighborhoodSampler": NeighborhoodSampler,
        "EdgeSampler": EdgeSampler,
        "weighting": lambda v: tl.HeatKernel()(COLUMNS, v),
        "LaplacianEigenmaps": lambda v: tl.LaplacianEigenmaps(2, tl.Precomputed("affinity"))(v),
        "DiffusionMap": lambda v: tl.DiffusionMap(2, tl.Precomputed("affinity"))(v),
        "SpectralClustering": lambda v: tl.SpectralClustering(2, tl.Precomputed("affinity"))(v),
        "HarmonicFunction": lambda v: tl.HarmonicFunction(tl.Precomputed("affinity"))(v, NODES),
        "plot_graph": lambda v: plot_graph(v, COLUMNS, axes=Figure().subplots()),
    },
    "operator": {"eigenpairs": lambda v: tl.eigenpairs(v, 2), "solve_linear": lambda v: eigen.solve_linear(v, COLUMNS)},
    "pairs": {
        "spectral_function": lambda v: methods.spectral_function(v, heat),
        "spectral_signature": lambda v: tl.spectral_signature(v, heat),
        "SpectralFilter": lambda v: tl.SpectralFilter(heat)(v, COLUMNS),
        "StableEncoding": lambda v: tl.StableEncoding(heat, torch.nn.Identity())(v),
        "canonicalize": methods.canonicalize,
        "SignInvariant": lambda v: methods.SignInvariant(torch.nn.Identity())(v),
        "plot_embedding": lambda v: plot_embedding(v, axes=Figure().subplots()),
        "plot_spectrum": lambda v: plot_spectrum(v, axes=Figure().subplots()),
    },
}
KINDS = {
    "graph": (GRAPHS["sparse"], GRAPHS["DirectedGraph"]),
    "operator": (OPERATORS["Laplacian, symmetric"], OPERATORS["FunctionOperator"], OPERATORS["MagneticLaplacian"]),
    "pairs": (EIGENPAIRS["Laplacian, symmetric"], EIGENPAIRS["MagneticLaplacian"]),
}


@pytest.mark.parametrize("takes", DOORS)
def test_other_objects_are_refused_by_their_names(takes):
    wrong = []
    for kind, producers in KINDS.items():
        for made in [] if kind == takes else [produce() for produce in producers]:
            arrived = type(made.value).__name__
            for name, call in DOORS[takes].items():
                try:
                    call(made.value)
                except (TypeError, ValueError) as error:
                    if arrived in str(error) and re.search(r"use|must be|see", str(error)):
                        continue
                    wrong.append(f"{name} of {arrived}: {error}")
                except Exception as error:
                    wrong.append(f"{name} of {arrived}: {type(error).__name__}: {error}")
                else:
                    wrong.append(f"{name} takes {arrived}")
    assert not wrong, "\n".join(wrong)


# --- The cells --------------------------------------------------------------------------------------------------------


def wrong_cells(kinds, consumers, consumed):
    """The cells of a producer that are neither right nor refused by a row."""
    wrong = []
    for name, consume in consumers.items():
        expected = combined.refused(kinds, name)
        try:
            consumed(consume)
        except (TypeError, ValueError) as error:
            if not any(re.search(combined.says(row), str(error)) for row in expected):
                wrong.append(f"{name}: {type(error).__name__}: {error}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error).strip()[:300]}")
        else:
            wrong += [f"{name} is right, and a row has: {row.kinds}" for row in expected]
    return wrong


def test_the_page_has_these_reasons():
    assert combined.written(PAGE.read_text()) == PAGE.read_text(), "python tests/combined.py writes the page"


@pytest.mark.filterwarnings("ignore:.*isolated")
def test_each_reason_is_met():
    """No reason is left of a combination that is gone."""
    kinds = [make().kinds for of in (GRAPHS, OPERATORS, EIGENPAIRS) for make in of.values()]
    names = {*METHODS, *RULES, *WEIGHTINGS, *OF_POINTS}
    kinds += [{"sharded graph"}, {"sharded pairs"}]  # in tests/distributed
    kinds.append(first_words(*names) | {"weighting", "rule that is not Landmarks", "clusters or labels"})
    for row in combined.REFUSALS:
        each = ({*kind.split(" | ")} for kind in row.kinds)
        assert any(all(some & names for names in each) for some in kinds), row.kinds


# Errors that ask for a kind in methods, faces, losses and samplers and are no rows.
BY_HAND = {
    "isinstance(x, Graph)": "whether x is points or affinities depends on the rule",
    "not isinstance(neighbors, KNN) or neighbors.symmetrize != KNN.symmetrize": "only one rule is taken",
    "not isinstance(metric, (str, Precomputed)) or metric not in ('euclidean', Precomputed('distance'))": "two words",
    "not isinstance(self.neighbors, (KNN, Radius, Precomputed))": "frozen maps are written for three rules",
    "not columns.is_complex()": "what a network of the user makes of them is known when it runs",
}
OF_KINDS = {"is_sharded", "is_complex", "similarity", "inner_product", "density_correction", "which"}
OF_KINDS |= {"SignedGraph", "DirectedGraph", "Graph", "Landmarks", "Precomputed", "KNN", "ImprovedWeights"}


def test_kinds_are_refused_by_rows():
    """No error of the rooms above asks for the kind of an object by hand, but for `BY_HAND`."""
    package = Path(tl.__file__).parent
    files = [file for of in ("losses.py", "samplers.py", "methods/*.py", "sklearn/*.py") for file in package.glob(of)]
    found = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.If) and any(isinstance(step, ast.Raise) for step in node.body):
            words = {getattr(part, "attr", getattr(part, "id", "")) for part in ast.walk(node.test)}
            found |= {ast.unparse(node.test)} if words & OF_KINDS else set()
    assert {one for one in found if "dtype" not in one} == BY_HAND.keys()


def test_doors_name_consumers_that_have_rows():
    """A name that no row has would refuse nothing."""
    nodes = (node for file in Path(tl.__file__).parent.rglob("*.py") for node in ast.walk(ast.parse(file.read_text())))
    names = set()
    for node in (node for node in nodes if isinstance(node, ast.Call)):
        doors = {"refuse": 0, "check_pairs": 1, "check_graph": 2}  # arguments before the consumers
        first = doors.get(getattr(node.func, "id", getattr(node.func, "attr", "")), 99)
        names |= {part.value for part in node.args[first:] if isinstance(part, ast.Constant)}
    patterns = [pattern for row in rows_of(REFUSES) for pattern in row.consumers]
    assert len(names) > 10
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in patterns) for name in names)


quietly = pytest.mark.filterwarnings("ignore::torch_lapeig.GraphWarning")
TABLES = {"graphs": (GRAPHS, OF_GRAPHS), "operators": (OPERATORS, OF_OPERATORS), "eigenpairs": (EIGENPAIRS, OF_PAIRS)}


@quietly
@pytest.mark.parametrize(("table", "name"), [(table, name) for table, (made, _) in TABLES.items() for name in made])
def test_cells(table, name):
    producers, consumers = TABLES[table]
    wrong = wrong_cells(producers[name]().kinds, consumers, lambda consume: consume(producers[name]()))
    assert not wrong, "\n".join(wrong)


def first_words(*names):
    """The names, and their first words: kinds of a method, a rule and a weighting."""
    return {*names, *(name.split(",")[0] for name in names)}


def with_weightings(method, rule):
    """Yield each weighting, a maker of the method with it and a rule, and the kinds that these are of."""
    for weighting, weights in WEIGHTINGS.items():

        def make(neighbors=RULES[rule], weights=weights):
            return METHODS[method](neighbors, weights and weights())

        kinds = first_words(method, rule, weighting)
        kinds |= set() if weights() is None else {"weighting"}
        kinds |= set() if rule == "Landmarks" else {"rule that is not Landmarks"}
        kinds |= set() if kinds & {"LaplacianEigenmaps", "DiffusionMap"} else {"clusters or labels"}
        yield weighting, make, kinds


def of_its_own(consumers, model):
    """The consumers, without the methods that a class does not have."""
    lacking = {name for name in ("frozen", "fit_stream") if not hasattr(model, name)}
    return {name: one for name, one in consumers.items() if name not in lacking}


@quietly
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", METHODS)
def test_methods_rules_and_weightings(method, rule):
    """All consumers take each pair of a method, a rule and a weighting; those of `OF_FITS` each three."""
    wrong = []
    for number, (weighting, make, kinds) in enumerate(with_weightings(method, rule)):
        is_paired = (number - [*METHODS].index(method) - [*RULES].index(rule)) % len(WEIGHTINGS) < 2
        consumers = of_its_own(OF_FITS | OF_PAIRED_FITS if is_paired else OF_FITS, METHODS[method](tl.KNN(6), None))
        if RULES[rule] == STORED:  # a sparse matrix is one set
            consumers.pop("batch", None)
        shared = functools.cache(Fit)
        found = wrong_cells(kinds, consumers, lambda consume: consume(shared(make)))  # noqa: B023
        wrong += [f"{weighting}, {one}" for one in found]
    assert not wrong, "\n".join(wrong)


@quietly
@pytest.mark.parametrize("name", OF_POINTS)
def test_methods_of_points(name):
    consumers = of_its_own(OF_FITS | OF_PAIRED_FITS, OF_POINTS[name]()) | {"columns": as_formula(name)}
    wrong = wrong_cells({name}, consumers, lambda consume: consume(Fit(OF_POINTS[name])))
    assert not wrong, "\n".join(wrong)
