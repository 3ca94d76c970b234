"""Eigenpairs of cotangent Laplacians beside SciPy's shift-invert, LaPy and potpourri3d, from the mesh to the pairs.

Claim: 128 pairs of 10⁵ vertices take at most 0.6 of the time of the fastest of them, at residuals of the same order.
LaPy and potpourri3d are optional; all solve L u = λ M u with lumped areas. A further table has the consistent mass of
linear elements: 50 pairs of 50,000 vertices take at most 0.6 of the time of SciPy's shift-invert.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csc_array, dia_array
from scipy.sparse.linalg import eigsh
from scipy.spatial import ConvexHull
from torch import Tensor

from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.tables import Table
from torch_lapeig import eigenpairs, mesh_laplacian

Pairs = tuple[Tensor, Tensor]
OURS = "torch_lapeig"


def bumpy_sphere(n: int) -> Pairs:
    """Return vertices drawn at random, joined as on a sphere and moved along its radii: weights of either sign."""
    x = np.random.default_rng(0).standard_normal((n, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    faces = ConvexHull(x).simplices
    height = 1 + 0.3 * np.sin(5 * x[:, :1]) * np.cos(4 * x[:, 1:2])
    return torch.from_numpy(x * height), torch.from_numpy(faces.astype(np.int64))


def torus(n: int) -> Pairs:
    """Return a regular torus of squares of two triangles each: equal eigenvalues."""
    side = int(n**0.5)
    node = torch.arange(side * side).reshape(side, side)
    a, b, c, d = (part.flatten() for part in (node, node.roll(-1, 0), node.roll((-1, -1), (0, 1)), node.roll(-1, 1)))
    u, v = 2 * torch.pi * torch.cartesian_prod(*2 * [torch.arange(side, dtype=torch.float64) / side]).T
    ring = 2 + v.cos()
    vertices = torch.stack([ring * u.cos(), ring * u.sin(), v.sin()], 1)
    return vertices, torch.cat([torch.stack([a, b, c], 1), torch.stack([a, c, d], 1)])


def of_scipy(stiffness: object, mass: np.ndarray, k: int) -> Pairs:
    """Return the pairs by ARPACK on the inverse, SuperLU's factors, as SciPy's documentation has it."""
    columns = dia_array((mass[None], [0]), shape=(len(mass),) * 2).tocsc()
    values, vectors = eigsh(csc_array(stiffness), k, columns, sigma=-0.01)
    return torch.from_numpy(values), torch.from_numpy(vectors)


def candidates(vertices: Tensor, faces: Tensor, k: int) -> dict[str, Callable[[], Pairs]]:
    """Return the calls that are compared, from the mesh to the pairs."""

    def ours() -> Pairs:
        stiffness, mass = mesh_laplacian(vertices, faces)
        pairs = eigenpairs(stiffness, k, mass=mass, on_failure="raise")
        return pairs.values, pairs.vectors

    def scipy() -> Pairs:
        stiffness, mass = mesh_laplacian(vertices, faces)
        return of_scipy(to_scipy(stiffness.to_matrix()), mass.numpy(), k)

    def lapy() -> Pairs:
        from lapy import Solver, TriaMesh

        values, vectors = Solver(TriaMesh(vertices.numpy(), faces.numpy()), lump=True).eigs(k)
        return torch.from_numpy(values), torch.from_numpy(vectors)

    def potpourri3d() -> Pairs:
        import potpourri3d

        mesh = vertices.numpy(), faces.numpy()
        return of_scipy(potpourri3d.cotan_laplacian(*mesh), potpourri3d.vertex_areas(*mesh), k)

    found = {OURS: ours, "SciPy": scipy}
    peers = {"LaPy": lapy, "potpourri3d": potpourri3d}
    return found | {name: call for name, call in peers.items() if importlib.util.find_spec(name.lower())}


def to_scipy(matrix: Tensor) -> csc_array:
    """Return a symmetric sparse matrix for SciPy: its rows are its columns."""
    rows = matrix if matrix.layout == torch.sparse_csr else matrix.to_sparse_csr()
    parts = (rows.values(), rows.col_indices(), rows.crow_indices())
    return csc_array(tuple(part.numpy() for part in parts), shape=tuple(matrix.shape))


def of_pencil(mesh: Pairs, k: int, rounds: int) -> Table:
    """Return times of the pairs with a consistent mass, given both matrices; LaPy keeps its own of the mesh."""
    stiffness, mass = mesh_laplacian(*mesh, mass="consistent")
    columns, weights = to_scipy(stiffness.to_matrix()), to_scipy(mass)
    calls: dict[str, Callable[[], object]] = {
        OURS: lambda: eigenpairs(stiffness, k, mass=mass, on_failure="raise").values.numpy(),
        "SciPy": lambda: eigsh(columns, k, weights, sigma=-0.01)[0],
    }
    if importlib.util.find_spec("lapy"):
        from lapy import Solver, TriaMesh

        solver = Solver(TriaMesh(*(part.numpy() for part in mesh)), lump=False)
        calls["LaPy (SuperLU)"] = lambda: solver.eigs(k)[0]
    found: dict[str, np.ndarray] = {}

    def kept(name: str) -> None:
        found[name] = np.asarray(calls[name]())

    seconds = in_turn({name: functools.partial(kept, name) for name in calls}, rounds)
    table = Table(
        f"Consistent mass, {len(mesh[0]):,} nodes, {k} pairs, {torch.get_num_threads()} threads, median of {rounds}",
        {"": "", "s": ".1f", "time / SciPy": ".2f", "λ_k": ".8g"},
    )
    for name, values in found.items():
        table.add(name, median(seconds[name]), ratio(seconds[name], seconds["SciPy"]), float(values.max()))
    return table


def compared(mesh: Pairs, k: int, rounds: int, title: str) -> Table:
    """Return times of all candidates, and residuals of their pairs in one and the same problem."""
    calls = candidates(*mesh, k)
    found: dict[str, Pairs] = {}

    def kept(name: str) -> None:
        found[name] = calls[name]()

    seconds = in_turn({name: functools.partial(kept, name) for name in calls}, rounds)
    fastest = min((name for name in calls if name != OURS), key=lambda name: median(seconds[name]))
    stiffness, mass = mesh_laplacian(*mesh)
    table = Table(
        f"{title}, {len(mass):,} vertices, {k} pairs, {torch.get_num_threads()} threads, median of {rounds}",
        {"": "", "s": ".1f", f"time / {fastest}": ".2f", "largest residual": ".1e", "λ_k": ".8g"},
    )
    for name, (values, vectors) in found.items():
        u = torch.as_tensor(np.ascontiguousarray(vectors))
        rest = (stiffness.matmul(u) - mass[:, None] * u * values) / mass.sqrt()[:, None]
        worst = float(rest.norm(dim=0).max())
        table.add(name, median(seconds[name]), ratio(seconds[name], seconds[fastest]), worst, float(values.max()))
    return table


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vertices", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)


def run(record: Record, options: argparse.Namespace) -> None:
    n, rounds = (5000, 1) if options.quick else (options.vertices, options.rounds)
    record.show(compared(torus(n), 32, rounds, "Torus, regular"))
    record.show(compared(bumpy_sphere(n), 128, rounds, "Bumpy sphere, random vertices"))
    record.show(of_pencil(bumpy_sphere(n // 2), 50, rounds))
