"""Stiffness and mass of meshes of triangles or tetrahedra, differentiable in the vertices.

Linear finite elements on a mesh (Dziuk 1988; Pinkall & Polthier 1993) give L u = λ M u with L = D − W,

    w_ij = ½ Σ cot(angle opposite of edge ij in a face),    m_i = ⅓ Σ (area of a face at i),

sums over the faces at an edge, or at a vertex. Each face adds a positive semidefinite matrix whose null space is the
constants, so that L is positive semidefinite for any signs of the w_ij, with one null vector for each component. A
cotangent is negative where an angle is obtuse; w_ij < 0 where the two angles opposite of an edge sum to more than π.

Intrinsic Delaunay triangulation (Fisher et al. 2007) flips such edges within the surface, which keeps its shape. In the
unfolded pair of faces the other diagonal is the new edge. Flips end with all w_ij ≥ 0. Edges that share no face are
flipped together, in rounds. A face is known by the inner products of its sides at its corners and by its area, which a
needle keeps where its lengths are round-off; those of new faces are functions of the old ones, with gradients. An edge
flips where w_ij = 0, so that weights are continuous, and so is the mass by the areas of Voronoi's cells,
m_i = ¼ Σ w_ij l_ij².
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.symmetric import NullSpace, SymmetricOperator
from torch_lapeig.graph import algebra
from torch_lapeig.graph.algebra import gather, sum_of_groups
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.support import checks, precision

FLIP_ROUNDS = 1000  # maximum rounds of flips; a mesh of 10⁵ random vertices takes some 30

SPLIT = "split quadrilaterals, torch.cat([faces[..., [0, 1, 2]], faces[..., [0, 2, 3]]], -2)"


class MeshLaplacian(NamedTuple):
    """Stiffness and mass of meshes: L u = λ M u is ``eigenpairs(stiffness, k, mass=mass)``.

    Attributes:
        stiffness: L, of the vertices' dtype and batch; see `mesh_laplacian`.
        mass: the diagonal of M, ``(V,)`` or ``(B, V)``, 0 at vertices without a face; with ``mass="consistent"`` M as a
            sparse tensor ``(V, V)`` or ``(B, V, V)`` in COO, or dense in forward mode, which sparse ones lack.

    >>> triangle = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> mesh_laplacian(triangle, torch.tensor([[0, 1, 2]])).mass
    tensor([0.1667, 0.1667, 0.1667])
    """

    stiffness: SymmetricOperator
    mass: Tensor


@precision.full_precision
def mesh_laplacian(
    vertices: Tensor,
    faces: Tensor,
    *,
    mask: Tensor | None = None,
    intrinsic: bool = False,
    mass: Literal["lumped", "consistent"] = "lumped",
) -> MeshLaplacian:
    """Build the stiffness and the mass of meshes of triangles or tetrahedra, differentiable in the vertices.

    The mass of a vertex is a third of the area of its faces (barycentric); with ``intrinsic`` it is the area that is
    nearest to the vertex (Voronoi). Meshes may have a boundary, on which functions are free (Neumann), any number of
    components, faces of any orientation, and edges of more than two faces, at which all cotangents are summed. Computed
    in float64, and rounded to the vertices' dtype.

    Args:
        vertices: ``(V, 3)`` or a batch ``(B, V, 3)``, or ``(..., 2)`` in the plane; float32 or float64, finite.
            Gradients flow to them, in any order and mode.
        faces: int64 ``(F, 3)``, or ``(B, F, 3)`` for a batch, numbers of the vertices of each triangle. Rows of −1 are
            padding. One ``(F, 3)`` serves all meshes of a batch. Rows of four are tetrahedra, of vertices ``(..., 3)``.
        mask: bool ``(V,)`` or ``(B, V)``, the vertices that are there, None for all; others may hold anything. Vertices
            without a face take no part: their rows and mass are zero, with a `GraphWarning` unless the mask leaves them
            out.
        intrinsic: whether to flip edges until the triangulation is Delaunay, so that no weight is negative. The surface
            and its area stay. Weights and mass are continuous in the vertices, with kinks where an edge flips. With a
            boundary, or edges of three faces, two copies of the mesh are glued there ("tufted cover"), at edges of four
            and more in the order of the vertices opposite. Faces of no area are allowed: all lengths of their mesh grow
            by a tiny amount, and the mass is scaled to the area of the given faces. By default the given triangulation
            is kept, whose stiffness is a smooth function, and the finite-element matrix of the literature.
        mass: ``"lumped"``, or ``"consistent"`` for the sparse mass of linear elements, |T|/12 (1 + δ_ij) on a triangle
            and |T|/20 (1 + δ_ij) on a tetrahedron; only with the given triangulation.

    Returns: The stiffness and the mass. The stiffness has one known null vector for each component. It is
    ``of_affinities``, as multigrid needs, if no weight is negative.

    Raises: TypeError, ValueError: other types, shapes or numbers; no face; a face twice, or with one vertex twice, or
    with a vertex outside the mask; an edge of no length; a face of no area, unless ``intrinsic``. ConvergenceError:
    flips that do not end.

    >>> from torch_lapeig import eigenpairs
    >>> square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> stiffness, mass = mesh_laplacian(square, torch.tensor([[0, 1, 2], [0, 2, 3]]))
    >>> stiffness.to_dense()[0], mass.sum()
    (tensor([ 1.0000, -0.5000,  0.0000, -0.5000]), tensor(1.))
    >>> eigenpairs(stiffness, 2, mass=mass).values.round(decimals=4)
    tensor([0., 3.])
    """
    vertices, corners = _checked(vertices, faces, mask)
    checks.check_choice(mass, "mass", ("lumped", "consistent"))
    intrinsic, nodes = checks.check_flag(intrinsic, "intrinsic"), corners.shape[1]
    if intrinsic and (nodes == 4 or mass == "consistent"):
        raise ValueError('intrinsic must be False for tetrahedra, and with mass="consistent", got True')
    shape, total = tuple(vertices.shape[:-1]), vertices.shape[:-1].numel()
    sides = Sides.of(corners, total)
    # The first and the last edge of a face hold all of its vertices, of four two each.
    edges = sides.edge.reshape(len(corners), -1)
    keys = edges.amin(1) * len(sides.low) + edges.amax(1)
    order = keys.argsort(stable=True)
    is_copy = torch.zeros_like(keys, dtype=torch.bool).index_fill(0, order[1:][keys[order].diff() == 0], True)
    _refuse_faces(is_copy, corners, "be different", "drop copies of faces")
    unit = checks.power_of_two(vertices.double(), (-2, -1))  # areas in other units may leave the range of float64
    points = gather((vertices.double() / unit).reshape(total, -1), corners.flatten()).reshape(*corners.shape, -1)
    if nodes == 4:
        _refuse_quadrilaterals(checks.primal(points), sides)
        numbers = unit.reshape(-1, 1)[corners[:, 0] // shape[-1]]
        weights, volumes = _of_tetrahedra(points, corners, torch.finfo(vertices.dtype).eps)
        stiffness = _stiffness(2 * weights * numbers, sides, shape, vertices.dtype, mask)
        areas = (volumes[:, None] * numbers**3 / 4).expand(-1, 4)
        return MeshLaplacian(stiffness, _mass(areas, corners, shape, mass).to(vertices.dtype))
    lengths = _norms(points.roll(-2, 1) - points.roll(-1, 1))
    _refuse_faces((lengths == 0).any(1), corners, "have sides of positive length", "drop them, merge equal vertices")
    eps, triangles, copies = torch.finfo(vertices.dtype).eps, Triangles.of_points(points), 1
    is_flat = triangles.twice_area <= 4 * eps * lengths.amax(1).square()
    if intrinsic:
        mesh, whole = corners[:, 0] // shape[-1], triangles.twice_area.detach().new_zeros(total // shape[-1])
        whole = whole.index_add(0, mesh, triangles.twice_area / 2)
        if is_flat.any():
            triangles = _thickened(triangles, lengths, sides, mesh, is_flat, eps)
        corners, triangles, copies = _delaunay(corners, sides.edge, triangles)
        sides, mesh = Sides.of(corners, total), corners[:, 0] // shape[-1]
        # The part of a triangle that is nearest to a corner, summed over Delaunay triangles.
        shares = triangles.cotangents * triangles.squares / 8
        areas = shares.sum(1, keepdim=True) - shares
        found = torch.zeros_like(whole).index_add(0, mesh, areas.sum(1))
        areas = areas * torch.where(whole > 0, whole / found, 1 / copies)[mesh, None]
    else:
        areas = (triangles.twice_area / 6)[:, None].expand(-1, 3)
        lumped = "" if mass == "lumped" else ' and mass="lumped"'
        _refuse_faces(is_flat, corners, "have an area", f"use intrinsic=True{lumped}")
    numbers = unit.reshape(-1, 1)[corners[:, 0] // shape[-1]]
    stiffness = _stiffness(triangles.cotangents / copies, sides, shape, vertices.dtype, mask)
    return MeshLaplacian(stiffness, _mass(areas * numbers**2, corners, shape, mass).to(vertices.dtype))


def _mass(areas: Tensor, corners: Tensor, shape: tuple[int, ...], kind: str) -> Tensor:
    """Return the mass, given the share of each face's area at its corners, ``(F, 3 or 4)``."""
    if kind == "lumped":
        return sum_of_groups(areas.flatten(), corners.flatten(), torch.Size(shape).numel()).reshape(shape)
    count, n = corners.shape[1], shape[-1]
    # |T| / ((c)(c + 1)) (1 + δ_ij) for c corners.
    local = (1 + torch.eye(count).to(areas)) / (count + 1) * areas[:, :1, None]
    row, col = torch.broadcast_tensors(corners[:, :, None], corners[:, None, :])
    index, values = [row.flatten() // n] * (len(shape) - 1) + [row.flatten() % n, col.flatten() % n], local.flatten()
    if checks.is_dual(values):  # which a sparse tensor cannot be
        return values.new_zeros(*shape, n).index_put(tuple(index), values, accumulate=True)
    return algebra.assembled(torch.stack(index), values, (*shape, n))


def _refuse_quadrilaterals(points: Tensor, sides: Sides) -> None:
    """Raise ValueError for faces of four vertices that share sides, but no diagonal, and are of the shape of those."""
    # Tetrahedra that share a triangle share a diagonal of their rows. Where they share sides alone, the cosine between
    # two triangles at a diagonal tells: it is 1 in a plane, and −1/3 in a regular tetrahedron.
    shared = torch.bincount(sides.edge)[sides.edge].reshape(-1, 6) > 1  # of 01, 02, 03, 12, 13, 23
    normals = torch.linalg.cross(points.roll(-1, 1) - points, points.roll(1, 1) - points)
    cosine = torch.cosine_similarity(normals[:, :2], normals[:, 2:], 2, 0).amin(1).mean()
    if shared.any() and not shared[:, [1, 4]].any() and cosine > 0.25:
        raise ValueError(f"faces of four vertices must be tetrahedra, got quadrilaterals by their sides; {SPLIT}")


def _of_tetrahedra(points: Tensor, corners: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return −|T| ∇φ_i · ∇φ_j on the six edges of tetrahedra of points ``(F, 4, 3)``, and the volumes ``(F,)``."""
    a, b, c = (points[:, 1:] - points[:, :1]).unbind(1)
    # 6 |T| ∇φ_i is normal to the face opposite corner i.
    normals = torch.stack([torch.linalg.cross(*pair) for pair in ((b, c), (c, a), (a, b))], 1)
    six = (a * normals[:, 0]).sum(1)
    longest = checks.primal(points[:, 1:] - points[:, :1]).square().sum(2).amax(1).sqrt()
    is_flat = six.detach().abs() <= 8 * eps * longest**3
    _refuse_faces(is_flat, corners, "have a volume", f"drop tetrahedra of none, {SPLIT}")
    normals = torch.cat([-normals.sum(1, keepdim=True), normals], 1)
    pairs = [(normals[:, i] * normals[:, j]).sum(1) for i, j in combinations(range(4), 2)]
    return torch.stack(pairs, 1) / (-6 * six.abs())[:, None], six.abs() / 6


def _checked(vertices: Any, faces: Any, mask: Any) -> tuple[Tensor, Tensor]:
    """Return the vertices, 0 where masked, and the corners of the faces ``(F, 3)``, v of mesh b as ``b * V + v``."""
    checks.check_floating(vertices, "vertices")
    checks.check_outside_func(vertices, "vertices")
    if vertices.ndim not in (2, 3) or vertices.shape[-1] not in (2, 3):
        raise ValueError(f"vertices must have shape (V, 3), (B, V, 3) or (..., 2), got {tuple(vertices.shape)}")
    if mask is not None:
        checks.check_mask(mask, vertices)
        vertices = torch.where(mask[..., None], vertices, 0)  # padding may hold anything
    checks.check_finite(vertices, "vertices")
    n, batch = vertices.shape[-2], vertices.shape[:-2].numel()
    checks.check_indices(faces, "faces", n, least=-1)
    checks.check_same_device(faces, "faces", vertices, "vertices")
    nodes = (3, 4) if vertices.shape[-1] == 3 else (3,)
    if faces.ndim not in (2, vertices.ndim) or faces.shape[-1] not in nodes or faces.shape[:-2] not in ((), (batch,)):
        raise ValueError(
            "faces must have shape (F, 3) or (B, F, 3), or (..., 4) of tetrahedra in space, to go with vertices "
            f"{tuple(vertices.shape)}, got {tuple(faces.shape)}{f'; {SPLIT}' if faces.shape[-1] == 4 else ''}"
        )
    is_padding = faces < 0
    if (is_padding.any(-1) != is_padding.all(-1)).any():
        raise ValueError("faces must be rows of vertices, or of -1 as padding, got a row with some -1")
    numbers = faces + n * torch.arange(batch, device=faces.device)[:, None, None]
    corners: Tensor = numbers[(~is_padding.any(-1)).expand(numbers.shape[:-1])]
    if len(corners) == 0:
        raise ValueError(f"faces must hold at least one triangle, got {tuple(faces.shape)}")
    if mask is not None:
        _refuse_faces(~mask.flatten()[corners].all(1), corners, "join vertices inside the mask")
    same = (corners.sort(1).values.diff(dim=1) == 0).any(1)
    _refuse_faces(same, corners, f"have {'three' if corners.shape[1] == 3 else 'four'} different vertices")
    return vertices, corners


def _refuse_faces(bad: Tensor, corners: Tensor, must: str, way: str = "") -> None:
    if bad.any():
        got = f"{int(bad.sum())} that do not, first {corners[int(bad.nonzero()[0])].tolist()}"
        raise ValueError(f"faces must {must}, got {got}{way and f'; {way}'}")


class Sides(NamedTuple):
    """Sides of faces: side 3 f + c lies opposite corner c of face f, between its next two corners."""

    low: Tensor  # int64 ``(E,)``, the smaller vertex of each edge, by which edges ascend, then by the larger one
    high: Tensor  # int64 ``(E,)``, the larger vertex
    edge: Tensor  # int64 ``(3 F,)``, the edge of each side

    @classmethod
    def of(cls, corners: Tensor, total: int) -> Sides:
        """Return the sides of faces ``(F, 3)`` among so many vertices, or the six edges of tetrahedra ``(F, 4)``."""
        first, second = ([1, 2, 0], [2, 0, 1]) if corners.shape[1] == 3 else ([0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3])
        ends = torch.stack([corners[:, first].flatten(), corners[:, second].flatten()])
        keys, edge = (ends.amin(0) * total + ends.amax(0)).unique(return_inverse=True)
        return cls(keys // total, keys % total, edge)


class Triangles(NamedTuple):
    """Inner products ``(F, 3)`` of the two sides at each corner of triangles, and twice their areas ``(F,)``."""

    inner: Tensor
    twice_area: Tensor

    @property
    def cotangents(self) -> Tensor:
        """Return the cotangents of the angles, ``(F, 3)``."""
        return self.inner / torch.where(self.twice_area > 0, self.twice_area, 1)[:, None]

    @property
    def squares(self) -> Tensor:
        """Return the squared length of the side opposite of each corner, ``(F, 3)``."""
        return self.inner.roll(-1, 1) + self.inner.roll(-2, 1)

    @classmethod
    def of_points(cls, points: Tensor) -> Triangles:
        """Return the triangles of points ``(F, 3, 2 or 3)``, exact in slivers, too."""
        side = points.roll(-2, 1) - points.roll(-1, 1)
        # The product of the two shorter sides has the smallest error.
        longest = checks.primal(side).square().sum(2).argmax(1)
        face = torch.arange(len(side), device=side.device)
        u, v = (torch.nn.functional.pad(side[face, (longest + i) % 3], (0, 3 - side.shape[2])) for i in (1, 2))
        return cls(-(side.roll(-1, 1) * side.roll(-2, 1)).sum(2), _norms(torch.linalg.cross(u, v)))

    @classmethod
    def of_lengths(cls, lengths: Tensor) -> Triangles:
        """Return the triangles with sides of these lengths, ``(F, 3)``, opposite of their corners."""
        square, (c, b, a) = lengths.square(), lengths.sort(1).values.unbind(1)
        # Kahan's formula, whose differences lose no digits; positive.
        squared = (a + (b + c)) * (c - (a - b)) * (c + (a - b)) * (a + (b - c))
        least = (torch.finfo(lengths.dtype).eps * checks.primal(a).square()).square()
        twice_area = torch.where(squared > least, squared, least).sqrt() / 2
        return cls((square.roll(-1, 1) + square.roll(-2, 1) - square) / 2, twice_area)


def _norms(x: Tensor) -> Tensor:
    """Return the norms of rows; 0 without a derivative for a row of 0."""
    squares = x.square().sum(-1)
    is_zero = squares == 0
    return torch.where(is_zero, 1, squares).sqrt().masked_fill(is_zero, 0)


def _thickened(
    triangles: Triangles, lengths: Tensor, sides: Sides, mesh: Tensor, is_flat: Tensor, eps: float
) -> Triangles:
    """Return triangles, with sides longer by one amount in each mesh with faces of no area (Sharp & Crane 2020)."""
    bare = checks.primal(lengths)
    count = torch.bincount(mesh)
    mean = sum_of_groups(bare.mean(1), mesh, len(count)) / count.clamp_min(1)
    longest = bare.amax(1)
    excess = bare.sum(1) - 2 * longest
    # Sides of flat faces get √eps of the mesh's mean length.
    lacking = torch.where(is_flat, eps**0.5 * mean[mesh] - excess, 0)
    more = torch.zeros_like(mean).scatter_reduce(0, mesh, lacking, "amax")[mesh]
    # One length for both sides of an edge.
    side = torch.arange(len(sides.edge), device=mesh.device)
    first = side.new_zeros(len(sides.low)).scatter(0, sides.edge, side)[sides.edge]
    thick = Triangles.of_lengths((lengths + more[:, None]).flatten()[first].reshape(-1, 3))
    inner = torch.where(more[:, None] > 0, thick.inner, triangles.inner)
    return Triangles(inner, torch.where(more > 0, thick.twice_area, triangles.twice_area))


def _glued(edge: Tensor, opposite: Tensor) -> tuple[Tensor, int]:
    """Return the other side of each side's edge, and the number of copies of the faces that are glued."""
    # With a boundary, or edges of more than two faces, two copies of all faces are glued to a closed surface (Sharp &
    # Crane 2020): at each edge the first copy of a face to the second copy of the next one, in a circle, in the order
    # of the vertices opposite. The surface has no boundary, and each of its edges has two faces.
    order, count = (edge * (opposite.max() + 1) + opposite).argsort(), torch.bincount(edge)
    begin = count.cumsum(0) - count
    turn = edge[order]
    following = order[begin[turn] + (torch.arange(len(order), device=edge.device) - begin[turn] + 1) % count[turn]]
    following = torch.empty_like(order).index_copy_(0, order, following)
    if (count == 2).all():
        return following, 1
    before = torch.empty_like(order).index_copy_(0, following, torch.arange(len(order), device=edge.device))
    return torch.cat([following + len(edge), before]), 2


def _delaunay(corners: Tensor, edge: Tensor, triangles: Triangles) -> tuple[Tensor, Triangles, int]:
    """Return the faces of the intrinsic Delaunay triangulation, their shapes, and the number of copies."""
    twin, copies = _glued(edge, corners.flatten())
    vertex, inner = corners.flatten().repeat(copies), triangles.inner.flatten().repeat(copies)
    size, side = triangles.twice_area.repeat(copies), torch.arange(len(vertex), device=edge.device)
    following = side + 1 - 3 * (side % 3 == 2).long()  # the next corner of the same face
    # Flips need no orientation: a twisted edge has faces of opposite orientations. One of them is read backwards.
    is_twisted = vertex[following] == vertex[following[twin]]
    generator = torch.Generator().manual_seed(0)
    for _ in range(FLIP_ROUNDS):
        triangles = Triangles(inner.reshape(-1, 3), size)
        a = _to_flip(checks.primal(triangles.cotangents), twin, generator)
        if len(a) == 0:
            return vertex.reshape(-1, 3), triangles, copies
        b, twist = twin[a], is_twisted[a]
        # The edge joins the vertices i and j; o and p lie opposite of it.
        a_i, b_j, b_i = following[a], following[b], following[following[b]]
        a_j = following[a_i]
        b_i, b_j = torch.where(twist, b_j, b_i), torch.where(twist, b_i, b_j)
        i, j, o, p = vertex[a_i], vertex[a_j], vertex[a], vertex[b]
        new = _with_other_diagonal(inner[torch.stack([a_i, a_j, b_i, b_j])], size[torch.stack([a, b]) // 3])
        of_second = torch.cat([b_i, b_j])
        reverse = torch.zeros_like(twin).index_add_(0, torch.cat([of_second, twin[of_second]]), twist.long().repeat(4))
        is_twisted = is_twisted ^ (reverse % 2 == 1)
        # The faces become (i, p, o) and (j, o, p), and take their outer sides along.
        f, g = 3 * (a // 3), 3 * (b // 3)
        six = torch.cat([f, f + 1, f + 2, g, g + 1, g + 2])
        place = side.index_copy(0, torch.cat([a, a_j, b_j, b, b_i, a_i]), six)
        before = torch.empty_like(side).index_copy_(0, place, side)
        twin, is_twisted, both = place[twin[before]], is_twisted[before], torch.cat([f, g])
        vertex = vertex.index_copy(0, six, torch.cat([i, p, o, j, o, p]))
        inner = inner.index_copy(0, six, torch.cat([*new.inner[: len(a)].mT, *new.inner[len(a) :].mT]))
        size = size.index_copy(0, both // 3, new.twice_area)
        is_twisted = is_twisted.index_fill(0, both, False)
    raise checks.ConvergenceError(f"flips of edges do not end after {FLIP_ROUNDS} rounds; use intrinsic=False")


def _to_flip(cotangents: Tensor, twin: Tensor, generator: torch.Generator) -> Tensor:
    """Return sides of edges that are not Delaunay, of which no two share a face: the first of random numbers."""
    noise, cotangents = _noise(cotangents).flatten(), cotangents.flatten()
    side = torch.arange(len(twin), device=twin.device)
    bad = ((twin > side) & (cotangents + cotangents[twin] < -noise - noise[twin])).nonzero().flatten()
    number = torch.randperm(len(bad), generator=generator).to(bad.device)
    first = number.new_full((len(twin) // 3,), -1)
    faces = torch.stack([bad, twin[bad]]) // 3
    for face in faces:
        first = first.scatter_reduce(0, face, number, "amax")
    is_first: Tensor = (first[faces] == number).all(0)
    return bad[is_first]


def _noise(cotangents: Tensor) -> Tensor:
    """Return the round-off of cotangents ``(F, 3)``, which grows with the largest of their triangle."""
    sums = cotangents.abs().sum(1, keepdim=True).expand_as(cotangents)
    return 64 * torch.finfo(cotangents.dtype).eps * (1 + sums)


def _with_other_diagonal(inner: Tensor, size: Tensor) -> Triangles:
    """Return faces (i, p, o) and (j, o, p) for (i, j, o) and (i, j, p), given inner products at i and j of each."""
    (o_at_i, o_at_j, p_at_i, p_at_j), (size_o, size_p) = inner, size
    length_o, length_p = (o_at_i + o_at_j).sqrt(), (p_at_i + p_at_j).sqrt()  # of ij, in both
    h, k = size_o / length_o, size_p / length_p  # heights of o and p over ij
    # x and y: how far o and p lie along ij, seen from i, and from j.
    ends = ((o_at_i / length_o, p_at_i / length_p), (o_at_j / length_o, p_at_j / length_p))
    corners = [(x * y - h * k, h * (h + k) + x * (x - y), k * (h + k) + y * (y - x)) for x, y in ends]
    (at_i, at_o, at_p), (at_j, *others) = corners
    inner = torch.cat([torch.stack([at_i, at_p, at_o], 1), torch.stack([at_j, *others], 1)])
    size = torch.cat([x * k + y * h for x, y in ends])
    least = torch.finfo(inner.dtype).eps * checks.primal(Triangles(inner, size).squares).amax(1)
    return Triangles(inner, torch.where(size > least, size, least))


def _stiffness(
    cotangents: Tensor, sides: Sides, shape: tuple[int, ...], dtype: torch.dtype, mask: Tensor | None
) -> SymmetricOperator:
    """Return the stiffness of meshes of a shape from the cotangents of all sides, ``(F, 3)``, twice their weights."""
    weight = sum_of_groups(cotangents.flatten() / 2, sides.edge, len(sides.low))
    bare = checks.primal(weight)
    # Right angles, and four vertices on a circle, leave round-off of either sign.
    noise = sum_of_groups(_noise(checks.primal(cotangents)).flatten(), sides.edge, len(sides.low))
    is_noise = (bare < 0) & (bare >= -noise)
    weight = (weight - torch.where(is_noise, bare, 0)).to(dtype)
    proper = (sides.low != sides.high).nonzero().flatten()  # flips may join a vertex to itself
    low, high, weight = sides.low[proper], sides.high[proper], gather(weight, proper)
    total = torch.Size(shape).numel()
    order = torch.cat([low * total + high, high * total + low]).argsort()
    pattern = SparsePattern.trusted(torch.cat([low, high])[order], torch.cat([high, low])[order], shape, False)
    values = gather(weight, order % len(low))
    active = torch.zeros(total, dtype=torch.bool, device=low.device).index_fill(0, torch.cat([low, high]), True)
    active = active.reshape(-1, shape[-1])
    isolated = ~active if mask is None else ~active & mask.reshape(active.shape)
    if isolated.any():
        checks.warn(
            f"{int(isolated.sum())} vertices belong to no face and take no part; leave them out by mask=",
            checks.GraphWarning,
        )
    labels = pattern.components(torch.ones_like(checks.primal(values))).reshape(active.shape)
    null = NullSpace(active.to(dtype), *pattern.numbered_parts(labels, active))
    parts, is_affinity = (pattern, values, pattern.sum_rows(values)), bool((checks.primal(values) >= 0).all())
    return SymmetricOperator(*parts, null=null, active=active, of_affinities=is_affinity, trusted=True)
