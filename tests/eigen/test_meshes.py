"""Cotangent Laplacians: textbook matrices, known spectra at the rate of theory, gradients, and meshes that are bad."""

import itertools

import numpy as np
import pytest
import torch
from scipy.spatial import ConvexHull

from problems import check_derivatives, check_pairs, covering, dense_values, heat_of, square
from tests.campaign.meshes import of_faces
from torch_lapeig import Graph, GraphWarning, Laplacian, eigenpairs, mesh_laplacian
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lobpcg, ShiftInvert, SparseFactors


def icosphere(level):
    """The unit sphere: vertices, and faces that are all seen counterclockwise."""
    golden = (1 + 5**0.5) / 2
    signs = itertools.product((-1, 1), repeat=2)
    vertices = np.array([np.roll((0, a, b * golden), turn) for a, b in signs for turn in range(3)])
    v = vertices / np.linalg.norm(vertices[0])
    for _ in range(level):  # a vertex in the middle of each edge
        faces = ConvexHull(v).simplices
        middle = v[np.unique(np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]]).reshape(-1, 2), axis=0)].sum(1)
        v = np.concatenate([v, middle / np.linalg.norm(middle, axis=1, keepdims=True)])
    faces = torch.tensor(ConvexHull(v).simplices).long()
    v = torch.tensor(v)
    return v, torch.where((torch.linalg.det(v[faces]) < 0)[:, None], faces.flip(1), faces)


def bent(level=1, *, seed=0, noise=0.05):
    """A flattened sphere with noise, whose weights are of either sign."""
    v, f = icosphere(level)
    generator = torch.Generator().manual_seed(seed)
    return v * torch.tensor([1.0, 0.3, 3.0]) + noise * torch.randn(v.shape, generator=generator).double(), f


def is_used(vertices, faces):
    return torch.zeros(len(vertices), dtype=torch.bool).index_fill(0, faces.flatten(), True)


def of_textbooks(vertices, faces):
    """Return the stiffness, after a check of the matrices."""
    stiffness, mass = mesh_laplacian(vertices, faces)
    in_space = torch.nn.functional.pad(vertices, (0, 3 - vertices.shape[1]))
    expected, areas = map(torch.from_numpy, of_faces(in_space.numpy(), faces.numpy()))
    torch.testing.assert_close([stiffness.to_dense(), mass], [expected, areas])
    return stiffness


def test_matrices_are_those_of_the_textbook():
    vertices, faces = bent()
    stiffness = of_textbooks(vertices, faces)
    assert stiffness.values.min() < 0
    assert not stiffness.of_affinities
    assert torch.linalg.eigvalsh(stiffness.to_dense())[0] > -1e-13 * stiffness.bound
    of_textbooks(vertices[:, :2], faces)


def of_torus(n, intrinsic):
    """The flat torus: the unit square, with the vertices of opposite sides summed."""
    stiffness, mass = mesh_laplacian(*square(n), intrinsic=intrinsic)
    corner = torch.cartesian_prod(torch.arange(n + 1), torch.arange(n + 1)) % n @ torch.tensor([n, 1])
    fold = torch.nn.functional.one_hot(corner, n * n).double()
    affinity = -fold.T @ stiffness.to_dense() @ fold
    graph = Graph.from_dense(affinity - torch.diag(affinity.diagonal())).to_sparse()
    return Laplacian(graph, "unnormalized"), fold.T @ mass


SPECTRA = {
    "sphere": [0, *[2] * 3, *[6] * 5, *[12] * 7],
    "square": sorted(np.pi**2 * (a * a + b * b) for a in range(5) for b in range(5))[:10],
    "torus": sorted(4 * np.pi**2 * (a * a + b * b) for a in range(-3, 4) for b in range(-3, 4))[:9],
}
KINDS = [{}, {"intrinsic": True}, {"mass": "consistent"}]
every_kind = pytest.mark.parametrize("options", KINDS, ids=str)


@covering(2, surface=["sphere", "square", "torus"], intrinsic=[False, True])
def test_spectra_converge_as_the_square_of_the_edges(surface, intrinsic):
    exact = torch.tensor(SPECTRA[surface], dtype=torch.float64)
    errors = []
    for level in (2, 3):
        if surface == "torus":
            operator, mass = of_torus(3 * 2**level, intrinsic)
        else:
            mesh = icosphere(level) if surface == "sphere" else square(3 * 2**level)
            operator, mass = mesh_laplacian(*mesh, intrinsic=intrinsic)
            assert operator.of_affinities  # right angles leave no round-off below zero
        pairs = eigenpairs(operator, len(exact), mass=mass)
        assert pairs.converged
        errors.append((pairs.values - exact).abs()[1:])
    assert (errors[0] / errors[1] > 3.3).all()  # half of the edges, a quarter of the error
    assert (errors[1] < 0.05 * exact[1:]).all()


@covering(1, solver=[None, Eigh(), ShiftInvert(), ChebyshevSubspace(), Lobpcg(preconditioner=SparseFactors())])
def test_pairs_with_negative_weights_are_those_of_dense_matrices(solver):
    vertices, faces = bent(3)
    stiffness, mass = mesh_laplacian(vertices, faces)
    assert not stiffness.of_affinities
    pairs = eigenpairs(stiffness, 6, solver, mass=mass)
    check_pairs(pairs, dense_values(stiffness.to_dense(), torch.diag(mass)), rtol=1e-8, atol=1e-10)
    assert pairs.values[0] == 0


@pytest.mark.parametrize("seed", range(3))
def test_intrinsic_triangulations_are_delaunay(seed):
    vertices, faces = bent(2, seed=seed)
    faces = torch.where((torch.arange(len(faces)) % 3 == 0)[:, None], faces.flip(1), faces)  # of either orientation
    given, (stiffness, mass) = mesh_laplacian(vertices, faces), mesh_laplacian(vertices, faces, intrinsic=True)
    assert given.stiffness.values.min() < 0
    assert stiffness.values.min() >= 0
    assert stiffness.of_affinities
    torch.testing.assert_close(mass.sum(), given.mass.sum())
    # Of all triangulations of a surface, the Delaunay triangulation has the least energy (Rippa 1990).
    y = torch.randn(len(vertices), 20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert ((y * stiffness.matmul(y)).sum(0) <= (y * given.stiffness.matmul(y)).sum(0) * (1 + 1e-12)).all()
    assert stiffness.matmul(torch.ones_like(y)).abs().max() < 1e-12 * stiffness.bound


def test_flips_agree_with_robust_laplacian():
    robust_laplacian = pytest.importorskip("robust_laplacian")
    vertices, faces = bent(3)
    for kept in (faces, faces[100:]):  # closed, and with a boundary
        stiffness, mass = mesh_laplacian(vertices, kept, mask=is_used(vertices, kept), intrinsic=True)
        expected, areas = robust_laplacian.mesh_laplacian(vertices.numpy(), kept.numpy(), mollify_factor=0.0)
        used = is_used(vertices, kept)
        assert (stiffness.to_dense() - torch.tensor(expected.toarray()))[used].abs().max() < 1e-10
        torch.testing.assert_close(mass[used].sum(), torch.tensor(areas.diagonal())[used].sum())  # thirds there


@every_kind
def test_gradcheck_of_vertices(options):
    vertices, faces = bent(0, noise=0.1)

    def matrices(vertices):
        stiffness, mass = mesh_laplacian(vertices, faces, **options)
        return stiffness.to_dense(), mass.to_dense()

    def functions(vertices):
        stiffness, mass = mesh_laplacian(vertices, faces, **options)
        pairs = eigenpairs(stiffness, 3, mass=mass)
        return pairs.values, heat_of(pairs)

    for function in (matrices, functions):
        check_derivatives(function, vertices, second=1e-4, fast_mode=True)


@every_kind
def test_batches_are_their_meshes(options):
    meshes = [bent(1), bent(0), icosphere(1)]
    sizes = [len(v) for v, _ in meshes]
    vertices = torch.nn.utils.rnn.pad_sequence([v for v, _ in meshes], batch_first=True)
    faces = torch.nn.utils.rnn.pad_sequence([f for _, f in meshes], batch_first=True, padding_value=-1)
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    padded = torch.where(mask[..., None], vertices, torch.nan).requires_grad_()  # padding may hold anything
    stiffness, mass = mesh_laplacian(padded, faces, mask=mask, **options)
    pairs = eigenpairs(stiffness, 4, mass=mass)
    assert pairs.converged.all()
    (gradient,) = torch.autograd.grad(pairs.values.sum() + mass.to_dense().square().sum(), padded)
    assert gradient.isfinite().all()
    mass = mass.to_dense()
    for b, (v, f) in enumerate(meshes):
        leaf, place = v.clone().requires_grad_(), (b, *[slice(len(v))] * (mass.ndim - 1))
        own, areas = mesh_laplacian(leaf, f, **options)
        values = eigenpairs(own, 4, mass=areas).values
        areas = areas.to_dense()
        torch.testing.assert_close(stiffness.to_dense()[b, : len(v), : len(v)], own.to_dense())
        torch.testing.assert_close(mass[place], areas)
        torch.testing.assert_close(pairs.values[b], values, rtol=1e-9, atol=1e-12)
        assert not mass[b, len(v) :].any()
        (expected,) = torch.autograd.grad(values.sum() + areas.square().sum(), leaf)
        torch.testing.assert_close(gradient[b, : len(v)], expected, rtol=1e-7, atol=1e-9)
    deformed = torch.stack([meshes[0][0], 2 * meshes[0][0]])
    shared = mesh_laplacian(deformed, meshes[0][1], **options).mass.to_dense()  # one triangulation
    torch.testing.assert_close(shared[1], 4 * shared[0])
    with pytest.warns(GraphWarning, match="30 vertices belong to no face"):
        mesh_laplacian(vertices, faces, **options)


@pytest.mark.parametrize("intrinsic", [False, True])
def test_units_far_beyond_those_of_nature(intrinsic):
    vertices, faces = bent(1)
    expected = mesh_laplacian(vertices, faces, intrinsic=intrinsic)
    for exponent in (-500, 500):
        stiffness, mass = mesh_laplacian(2.0**exponent * vertices, faces, intrinsic=intrinsic)
        assert torch.equal(stiffness.values, expected.stiffness.values)
        assert torch.equal(mass, expected.mass * 2.0**exponent * 2.0**exponent)
    stiffness, mass = mesh_laplacian(2.0**530 * vertices, faces, intrinsic=intrinsic)
    with pytest.raises(ValueError, match="mass must be finite"):
        eigenpairs(stiffness, 3, mass=mass)


@covering(2, dtype=[torch.float32, torch.float64], unit=[1e-12, 1.0, 1e12], intrinsic=[False, True])
def test_units_and_dtypes(dtype, unit, intrinsic):
    vertices, faces = bent(3)
    expected = mesh_laplacian(vertices, faces, intrinsic=intrinsic)
    values = eigenpairs(expected.stiffness, 5, mass=expected.mass).values
    stiffness, mass = mesh_laplacian((unit * vertices).to(dtype), faces, intrinsic=intrinsic)
    assert stiffness.dtype == mass.dtype == dtype
    digits = 1e-9 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(mass.double() / unit**2, expected.mass, rtol=digits, atol=0)
    pairs = eigenpairs(stiffness, 5, mass=mass)
    assert pairs.values.dtype == dtype
    assert pairs.values[0] == 0
    # In float32 sums of rows are zero to float32's round-off only, but the null vector stays one.
    torch.testing.assert_close(pairs.values.double() * unit**2, values, rtol=100 * digits, atol=0)


def test_edges_of_three_faces_sum_their_cotangents():
    angle = torch.arange(3, dtype=torch.float64) * 2 * torch.pi / 3
    pages = torch.stack([angle.cos(), angle.sin(), torch.full_like(angle, 0.4)], 1)
    vertices = torch.cat([torch.tensor([[0.0, 0, 0], [0, 0, 1]]).double(), pages])
    faces = torch.tensor([[0, 1, 2], [0, 1, 3], [0, 1, 4]])
    of_textbooks(vertices, faces)
    flipped, areas = mesh_laplacian(vertices * torch.tensor([0.3, 0.3, 2]), faces, intrinsic=True)
    assert flipped.of_affinities
    assert mesh_laplacian(vertices * torch.tensor([0.3, 0.3, 2]), faces).stiffness.values.min() < 0
    values = eigenpairs(flipped, 5, mass=areas).values
    assert values[0] == 0
    assert values[1:].diff().min() < 1e-9  # differences of three pages that are alike


@pytest.mark.parametrize("thin", [1e-4, 1e-8, 1e-12])
def test_needles_keep_the_area_and_the_spectrum(thin):
    """A vertex beside an edge changes the spectrum as little as the vertex on it, however thin its face is."""
    vertices, faces = square(4)
    i, j = faces[0][0], faces[0][2]
    middle, towards = (vertices[i] + vertices[j]) / 2, vertices[faces[0][1]] - vertices[i]
    new = torch.tensor(len(vertices))
    more = [torch.stack(row) for row in ((faces[0][0], faces[0][1], new), (faces[0][1], j, new), (i, new, j))]
    split = torch.cat([faces[1:], torch.stack(more)])
    found = []
    for apart in (thin, 1e-14):
        moved = torch.cat([vertices, (middle + apart * towards)[None]])
        stiffness, mass = mesh_laplacian(moved, split, intrinsic=True)
        torch.testing.assert_close(mass.sum(), torch.ones((), dtype=torch.float64), rtol=1e-14, atol=0)
        assert mass.min() > 0
        found.append(eigenpairs(stiffness, 6, mass=mass).values)
    torch.testing.assert_close(*found, rtol=10 * thin, atol=1e-9)
    # A strip of width h, all of whose faces are needles, has the area h, and near 0 the values of a path.
    strip = vertices * torch.tensor([1, thin], dtype=torch.float64)
    assert abs(mesh_laplacian(strip, faces, intrinsic=True).mass.sum() / thin - 1) < 1e-7


def test_faces_with_equal_vertices():
    """Of those without an area test_errors.py follows the advice."""
    vertices, faces = square(2)
    vertices[4] = vertices[3]
    for intrinsic in (False, True):
        with pytest.raises(ValueError, match="sides of positive length"):
            mesh_laplacian(vertices, faces, intrinsic=intrinsic)


def box(n):
    """The unit cube, n³ small cubes of six tetrahedra each."""
    grid = torch.cartesian_prod(*[torch.arange(n + 1)] * 3)
    step = torch.tensor([(n + 1) ** 2, n + 1, 1])
    begin = (torch.cartesian_prod(*[torch.arange(n)] * 3) * step).sum(1)
    paths = [[0, step[a], step[a] + step[b], step.sum()] for a in range(3) for b in range(3) if a != b]
    return grid.double() / n, (begin[:, None, None] + torch.tensor(paths)).reshape(-1, 4)


def test_the_corner_of_a_cube_as_a_tetrahedron_and_the_half_square():
    corner = torch.cat([torch.zeros(1, 3), torch.eye(3)]).double()
    stiffness, mass = mesh_laplacian(corner, torch.arange(4)[None], mass="consistent")
    expected = torch.eye(4).double()
    expected[0], expected[:, 0], expected[0, 0] = -1, -1, 3
    torch.testing.assert_close(stiffness.to_dense(), expected / 6)
    torch.testing.assert_close(mass.to_dense(), (1 + torch.eye(4).double()) / 120)
    plane = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double()
    mass = mesh_laplacian(plane, torch.tensor([[0, 1, 2]]), mass="consistent").mass
    torch.testing.assert_close(mass.to_dense(), (1 + torch.eye(3).double()) / 24)


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_tetrahedra_of_a_box(size):
    vertices, faces = box(3)
    vertices = vertices * size
    stiffness, mass = mesh_laplacian(vertices, faces, mass="consistent")
    lumped = mesh_laplacian(vertices, faces).mass
    torch.testing.assert_close(mass.to_dense().sum(1), lumped, rtol=1e-12, atol=0)
    torch.testing.assert_close(lumped.sum().item(), size**3)
    linear = vertices[:, 0]
    dense = stiffness.to_dense()
    assert (dense.sum(1).abs() <= 1e-12 * size).all()
    torch.testing.assert_close((linear @ dense @ linear).item(), size**3)  # ∫ |∇x|²
    torch.testing.assert_close((linear @ mass.to_dense() @ linear).item(), size**5 / 3)  # ∫ x²


def test_spectrum_of_a_box_of_tetrahedra():
    """Neumann's eigenvalues π² (a² + b² + c²)."""
    errors = []
    for n in (4, 8):
        stiffness, mass = mesh_laplacian(*box(n))
        errors.append((eigenpairs(stiffness, 4, mass=mass).values[1:] / np.pi**2 - 1).abs())
    assert (errors[0] / errors[1] > 3).all()


def test_gradients_of_tetrahedra_and_consistent_masses():
    vertices, faces = box(1)

    def function(x):
        stiffness, mass = mesh_laplacian(x, faces, mass="consistent")
        return stiffness.to_dense(), mass.to_dense()

    assert torch.autograd.gradcheck(function, vertices.clone().requires_grad_(), fast_mode=True)
    stiffness, mass = mesh_laplacian(torch.stack([vertices, 2 * vertices]), faces, mass="consistent")
    torch.testing.assert_close(stiffness.to_dense()[1], 2 * function(vertices)[0])
    torch.testing.assert_close(mass.to_dense()[1], 8 * function(vertices)[1])


def test_quadrilaterals_are_refused_and_tetrahedra_are_not():
    grid, node = square(4)[0], torch.arange(25).reshape(5, 5)
    quads = torch.stack([node[:-1, :-1], node[1:, :-1], node[1:, 1:], node[:-1, 1:]], -1).reshape(-1, 4)
    for height in (grid[:, 0] * 0, grid.prod(1), grid.square().sum(1).sqrt()):
        with pytest.raises(ValueError, match=r"quadrilaterals.*torch\.cat"):
            mesh_laplacian(torch.cat([grid, height[:, None]], 1), quads)
    cube = torch.cartesian_prod(*[torch.arange(2.0)] * 3)
    with pytest.raises(ValueError, match=r"quadrilaterals.*torch\.cat"):
        mesh_laplacian(cube, torch.tensor([[0, 1, 3, 2], [4, 5, 7, 6], [0, 1, 5, 4], [2, 3, 7, 6], [0, 2, 6, 4]]))
    regular = cube[[0, 3, 5, 6]]
    volume = mesh_laplacian(regular, torch.arange(4)[None]).mass.sum()
    apart = torch.cat([regular, regular + 3, 2 * regular[:2].mean(0) - regular[2:]])
    for order in itertools.permutations(range(4)):  # apart, joined at an edge, and both
        rows = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 8, 9]])[:, order]
        for kept in (rows[:2], rows[[0, 2]], rows):
            mass = mesh_laplacian(apart, kept, mask=is_used(apart, kept)).mass
            torch.testing.assert_close(mass.sum(), len(kept) * volume)
