"""Eigenpairs of cotangent Laplacians with their mass, and gradients to the vertices, against NumPy and LAPACK.

The reference sums cotangents face by face. After flips it is the library's own stiffness, which must have weights ≥ 0,
rows of sum 0, the area of the given faces, and no more energy than their stiffness (Rippa's theorem).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial import ConvexHull, Delaunay
from torch import Tensor

from tests.campaign import families, pairs
from tests.campaign.edges import Floats
from tests.campaign.outcomes import Case, Finding, Outcome, is_due, may_be_off, watched
from tests.campaign.reference import Reference, quotients, splitting
from tests.campaign.solves import DTYPES
from torch_lapeig import Eigenpairs, eigenpairs, mesh_laplacian

Rng = np.random.Generator
KINDS = ["sphere", "plane", "grid", "octahedron", "book", "two"]
MOST_PAIRS = 12
GAP = 1e-4  # relative to the bound: with smaller gaps finite differences decide nothing


def mesh(rng: Rng, kind: str, n: int) -> tuple[Floats, Any]:
    if kind == "octahedron":  # equal eigenvalues
        vertices = np.concatenate([np.eye(3), -np.eye(3)])
        return vertices, ConvexHull(vertices).simplices
    if kind == "grid":  # right angles, equal eigenvalues
        side = max(2, round(n**0.5))
        vertices = np.stack(np.meshgrid(*2 * [np.arange(side) / side], [0.0]), -1).reshape(-1, 3)
        node = np.arange(side * side).reshape(side, side)
        a, b, c, d = (part.ravel() for part in (node[:-1, :-1], node[1:, :-1], node[1:, 1:], node[:-1, 1:]))
        return vertices, np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])
    x = rng.standard_normal((max(n, 4), 3))
    if kind == "plane":
        return x * [1, 1, 0], Delaunay(x[:, :2] * [1, rng.uniform(1, 8)]).simplices
    vertices = x / np.linalg.norm(x, axis=1, keepdims=True)
    faces = ConvexHull(vertices).simplices
    vertices = vertices * 10 ** rng.uniform(-0.7, 0.7, 3)
    if kind == "two":
        return np.concatenate([vertices, vertices + 9]), np.concatenate([faces, faces + len(vertices)])
    if kind == "book":  # edges of three and more faces
        more = np.stack([rng.choice(len(vertices), 3, replace=False) for _ in range(len(faces) // 4 + 1)])
        faces = np.unique(np.sort(np.concatenate([faces, more]), 1), axis=0)
    return vertices, faces


def of_some_area(vertices: Floats, faces: Any) -> Any:
    """Return the faces that are no slivers, which float32 cannot tell from faces of no area."""
    side = vertices[faces] - vertices[np.roll(faces, 1, 1)]
    area = np.linalg.norm(np.cross(side[:, 0], side[:, 1]), axis=1)
    kept = area > 1e-3 * np.square(side).sum(2).max(1)
    return faces[kept] if kept.any() else faces


def assembled(case: Case, vertices: Floats) -> tuple[Floats, Floats]:
    stiffness, mass = of_faces(vertices, case["faces"].numpy())
    return stiffness, mass * case["factor"].numpy()


def of_faces(vertices: Floats, faces: Any) -> tuple[Floats, Floats]:
    """Return the stiffness of cotangents, face by face, and the lumped areas."""
    n = len(vertices)
    stiffness, mass = np.zeros((n, n)), np.zeros(n)
    for corner in range(3):
        c, i, j = faces[:, corner], faces[:, corner - 2], faces[:, corner - 1]
        u, v = vertices[i] - vertices[c], vertices[j] - vertices[c]
        twice = np.linalg.norm(np.cross(u, v), axis=1)
        half = (u * v).sum(1) / twice / 2
        for a, b, sign in ((i, j, -1), (j, i, -1), (i, i, 1), (j, j, 1)):
            np.add.at(stiffness, (a, b), sign * half)
        np.add.at(mass, c, twice / 6)
    return stiffness, mass


class Mesh:
    """Pairs of one mesh by the default solver, and the gradient of one loss along one direction."""

    name, share = "mesh", 0.15

    def draw(self, rng: Rng) -> Iterator[Case]:
        kind = str(rng.choice(KINDS))
        vertices, faces = mesh(rng, kind, families.size(rng, 4, 150))
        faces = of_some_area(vertices, faces)
        faces = np.where(rng.random((len(faces), 1)) < 0.3, faces[:, ::-1], faces)  # of either orientation
        order = rng.permutation(len(vertices))
        vertices, faces = vertices[order] * 10 ** rng.uniform(-6, 6), np.argsort(order)[faces]
        factor = 10 ** rng.uniform(-2, 2, len(vertices)) if rng.random() < 0.3 else np.ones(len(vertices))
        case: Case = {"family": kind, "vertices": torch.from_numpy(vertices)}
        case |= {"faces": torch.from_numpy(faces.astype(np.int64)), "factor": torch.from_numpy(factor)}
        case |= {"intrinsic": bool(rng.random() < 0.5), "seed": int(rng.integers(2**31))}
        truth = of_dense(*assembled(case, vertices))
        split = splitting(truth.values, min(MOST_PAIRS, truth.size))
        k = int(rng.choice(split)) if split and rng.random() < 0.3 else int(rng.integers(1, MOST_PAIRS + 1))
        for dtype in ("float64", "float32"):
            yield {**case, "k": min(k, truth.size), "dtype": dtype}

    def check(self, case: Case) -> Outcome:
        findings, counts, unconverged = list[Finding](), {}, False
        vertices = case["vertices"].to(DTYPES[case["dtype"]]).clone().requires_grad_()
        given = assembled(case, vertices.detach().double().numpy())
        with watched(findings) as caught:
            answer, stiffness, mass = solved(case, vertices)
            findings += judged_matrices(case, given, (stiffness, mass))
            truth = of_dense(stiffness, mass)
            findings += pairs.check(pairs.answers(answer)[0], truth, "random_walk")
            unconverged = not bool(answer.converged)
            (gradient,) = torch.autograd.grad(loss(case, answer, scale_of(case, truth)), vertices)
            is_warned = may_be_off(caught)
            if not gradient.isfinite().all():
                findings.append(Finding("gradient not finite", f"warned: {is_warned}"))
            elif truth.gap(case["k"]) > GAP * truth.bound and case["dtype"] == "float64" and not is_warned:
                findings += judged_gradient(case, truth, gradient)
            else:
                counts = {"(gradient not judged)": 1}
        if unconverged and not any(is_due(w) for w in caught):
            findings.append(Finding("unconverged without a warning", str(answer.solver)))
        kind = f"{case['family']}{', flipped' * case['intrinsic']}"
        return Outcome(f"default {case['dtype']}", kind, findings, unconverged, counts=counts)


def solved(case: Case, vertices: Tensor) -> tuple[Eigenpairs, Floats, Floats]:
    mask = torch.zeros(len(vertices), dtype=torch.bool).index_fill(0, case["faces"].flatten(), True)
    stiffness, mass = mesh_laplacian(vertices, case["faces"], mask=mask, intrinsic=case["intrinsic"])
    mass = mass * case["factor"].to(mass)
    answer = eigenpairs(stiffness, case["k"], mass=mass)
    return answer, stiffness.double().to_dense().detach().numpy(), mass.detach().double().numpy()


def of_dense(stiffness: Floats, mass: Floats) -> Reference:
    active, root = mass > 0, np.sqrt(mass)
    inverse = np.where(active, 1 / np.where(active, root, 1), 0)
    matrix = inverse[:, None] * stiffness * inverse
    values = quotients(matrix[np.ix_(active, active)])
    return Reference(matrix, values, active, root, float(np.abs(matrix).sum(1).max()), int((matrix != 0).sum(1).max()))


def judged_matrices(case: Case, given: tuple[Floats, Floats], found: tuple[Floats, Floats]) -> list[Finding]:
    eps, size = torch.finfo(DTYPES[case["dtype"]]).eps, np.abs(given[0]).max()
    off = np.abs(found[1] - given[1]).max() / given[1].max()
    findings = []
    if not case["intrinsic"]:
        if off > 100 * eps:
            findings.append(Finding("wrong mass", f"off by {off:.1e}"))
        if (error := np.abs(found[0] - given[0]).max()) > 1e4 * eps * size:  # slivers have sines of 1e-3
            findings.append(Finding("wrong stiffness", f"off by {error:.1e} of {size:.1e}"))
        return findings
    areas = [float((mass / case["factor"].numpy()).sum()) for mass in (found[1], given[1])]
    if abs(areas[0] - areas[1]) > 100 * eps * areas[1]:
        findings.append(Finding("wrong mass", f"area {areas[0]:.8e} of {areas[1]:.8e}"))
    if (found[0] - np.diag(np.diag(found[0]))).max() > 0:
        findings.append(Finding("wrong stiffness", "a negative weight after flips"))
    if (least := np.linalg.eigvalsh(given[0] - found[0])[0]) < -1e4 * eps * size:
        findings.append(Finding("wrong stiffness", f"more energy than that of the given faces, {least:.1e}"))
    return findings


def weights(case: Case, n: int) -> Floats:
    g = np.random.default_rng(case["seed"]).standard_normal((n, n))
    symmetric: Floats = g + g.T
    return symmetric


class Scale(NamedTuple):
    """Sizes of the wanted values, positive where these are zero, and of the mass."""

    # Torch's derivative of `matrix_exp` loses digits where a loss is far from 1.

    value: float
    mass: float


def scale_of(case: Case, truth: Reference) -> Scale:
    value = float(truth.values[: case["k"]].mean()) + 1e-2 * truth.bound
    return Scale(value, float(np.square(truth.root_degree).mean()))


def loss(case: Case, answer: Eigenpairs, scale: Scale) -> Tensor:
    """Return tr(G U exp(−Λ / scale) Uᵀ), the same in any basis of an eigenspace."""
    u = answer.vectors * scale.mass**0.5
    heat = u @ torch.matrix_exp(-answer.projected / scale.value) @ u.mT
    found: Tensor = (torch.from_numpy(weights(case, len(u))).to(u) * heat).sum()
    return found


def judged_gradient(case: Case, truth: Reference, gradient: Tensor) -> list[Finding]:
    """Compare with a central difference of the dense reference along a random direction of the vertices."""
    rng, vertices, scale = np.random.default_rng(case["seed"] + 1), case["vertices"], scale_of(case, truth)
    direction = torch.from_numpy(rng.standard_normal(vertices.shape)) * vertices.abs().max()
    if case["intrinsic"] and has_kink(case, direction):
        return []
    values = {}
    for step in (-1e-6, 0.0, 1e-6):
        spectrum, u = of_answer(case, vertices + step * direction)
        k = case["k"]
        heat = scale.mass * (u[:, :k] * np.exp(-spectrum[:k] / scale.value)) @ u[:, :k].T
        values[step] = float((weights(case, len(u)) * heat).sum())
    before, after = ((values[end] - values[end - 1e-6]) / 1e-6 for end in (0.0, 1e-6))
    noise = abs(after - before)  # large at a kink, where an edge flips
    off = abs(float((gradient * direction).sum()) - (before + after) / 2)
    size = float(gradient.norm() * direction.norm())
    if off > 1e-4 * size + 10 * noise:
        return [Finding("wrong gradient", f"off by {off:.1e} of {size:.1e}, noise {noise:.1e}")]
    return []


def has_kink(case: Case, direction: Tensor) -> bool:
    """Return whether edges flip at the vertices, as all of a grid may: the stiffness has no derivative there."""
    left, here, right = (solved(case, case["vertices"] + step * direction)[1] for step in (-1e-6, 0.0, 1e-6))
    return bool(np.abs(left - 2 * here + right).max() > 1e-3 * np.abs(right - left).max())


def of_answer(case: Case, vertices: Tensor) -> tuple[Floats, Floats]:
    """Return all values and generalised vectors of a dense problem; of flipped meshes with the library's matrices."""
    truth = of_dense(*(solved(case, vertices)[1:] if case["intrinsic"] else assembled(case, vertices.numpy())))
    inside = np.ix_(truth.active, truth.active)
    values, vectors = np.linalg.eigh(truth.matrix[inside])
    u = np.zeros((len(truth.matrix), len(values)))
    u[truth.active] = vectors / truth.root_degree[truth.active, None]
    return values, u
