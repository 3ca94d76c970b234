"""Starts for UMAP and t-SNE: spectral coordinates of any neighbourhood graph, connected or not, in bounded work."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from torch_lapeig.eigen import Auto, Laplacian, Solve, Solver, eigenpairs
from torch_lapeig.graph import Graph, HeatKernel, knn_graph, nearest_neighbors
from torch_lapeig.graph.graph import batches_of_components, check_graph
from torch_lapeig.support import checks, precision

__all__ = ["InitialLayout", "spectral_init"]


class InitialLayout(NamedTuple):
    """Coordinates to start UMAP or t-SNE from, with the quality of the eigenpairs behind them.

    Attributes:
        embedding: ``(N, k)``, scaled; ``embedding.numpy()`` is what UMAP and openTSNE take.
        component: int64 ``(N,)``, the connected component of each node, by first node.
        eigenvalues: ``(c, k)`` of the columns of each of the c components; +∞ for random columns, as a component of m
            nodes has m − 1 eigenvectors after the trivial one.
        residuals: ``(c, k)``, ‖L_sym v − λ v‖ of each column before it was scaled; +∞ for random columns.
        converged: whether the tolerance allows all residuals; False if a column is random.

    >>> path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    >>> start = spectral_init(path, 1, seed=0)
    >>> start.eigenvalues.round(decimals=3), start.converged  # of a path: 1 − cos(π/3)
    (tensor([[0.5000]]), True)
    """

    embedding: Tensor
    component: Tensor
    eigenvalues: Tensor
    residuals: Tensor
    converged: bool


@torch.no_grad()
@precision.full_precision
def spectral_init(
    graph: Any,
    k: int = 2,
    seed: int | None = None,
    *,
    scale: Literal["umap", "tsne"] = "umap",
    points: Any = None,
    solve: Solve | Solver | None = None,
) -> InitialLayout:
    """Compute spectral coordinates of a neighbourhood graph from which UMAP or t-SNE starts, without gradients.

    The coordinates are the eigenvectors after the trivial one. A disconnected graph is laid out as umap-learn does
    (`umap.spectral.multi_component_layout`): each component on its own, in a cube of half the distance to the nearest
    other component around its place. Up to 2k places are ± the axes. More are the spectral embedding of the components'
    centroids, with the median bandwidth; umap-learn has 1, which underflows for most units. Without ``points``
    they are a grid; umap-learn draws at random. A component of m ≤ k nodes has m − 1 eigenvectors, and its other
    columns are random; umap-learn draws all columns at random if m < 2k.

    The work is bounded: each solver gives up after a fixed number of products, with a warning. Tolerances are relative
    to eigengaps, so that nearly disconnected graphs do not stop the solve, as they stop ARPACK.

    Args:
        graph: symmetric, non-negative affinities of N nodes: a `Graph`; a SciPy sparse matrix; an edge list int64
            ``(2, E)`` of both directions, or a pair of it and its weights ``(E,)``; an object with one of these as
            ``graph_`` (a fitted ``umap.UMAP``) or ``P`` (affinities of openTSNE).
        k: number of columns. If no component has k + 1 nodes, the last are random, with a `GraphWarning`.
        seed: seed of noise and random places; None draws from torch's own generator.
        scale: ``"umap"``: eigenvectors of L_sym, the largest |coordinate| 10, with noise of standard deviation 1e-4, as
            umap-learn. ``"tsne"``: generalised eigenvectors times 1 − λ, the standard deviation of the first column
            1e-4, with noise of 1 % of it, as openTSNE.
        points: ``(N, D)``, a tensor, an array, a data frame of numbers or a SciPy sparse matrix, whose means in each
            component place more than 2k components.
        solve: options of the eigensolve; default a tolerance of 1e-6.

    Source: McInnes, Healy & Melville, *UMAP* (2018), section 4.2; Belkin & Niyogi 2003.

    >>> from torch_lapeig import knn_graph
    >>> x = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    >>> y = spectral_init(knn_graph(x, 10), 2, seed=0).embedding
    >>> y.shape, y.abs().max().round()
    (torch.Size([200, 2]), tensor(10.))
    """
    k = checks.check_width(k, "k")
    checks.check_choice(scale, "scale", ("umap", "tsne"))
    generator = None if seed is None else torch.Generator().manual_seed(checks.check_seed(seed))
    rows = None if points is None else rows_of(points)
    whole = _graph_of(graph, None if rows is None else rows.shape[0]).to_sparse()
    if rows is not None and (rows.shape[0] != whole.num_nodes or rows.shape[1] == 0):
        raise ValueError(f"points must have shape ({whole.num_nodes}, D), got {rows.shape}")
    solve = Solve(tolerance=1e-6) if solve is None else Solve.of(solve)

    found = _by_components(whole, k, scale, solve, generator)
    places = _places(found.component, k, rows).to(found.embedding)
    distinct, number = places.unique(dim=0, return_inverse=True)
    room: Any = 1.0  # half the distance to the nearest other place
    if len(distinct) > 1:
        room = nearest_neighbors(distinct, 1).squared_distances.sqrt()[number[found.component]] / 2
    y = places[found.component] + room * found.embedding
    noise = torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
    if scale == "umap":
        y = 10 * y / checks.largest(y) + 1e-4 * noise
    else:
        deviation = y[:, 0].std(correction=0)
        y = 1e-4 * (y / torch.where(deviation > 0, deviation, 1) + 0.01 * noise)
    return found._replace(embedding=y)


def rows_of(points: Any, name: str = "points") -> Any:
    """Return points ``(N, D)`` as an array of NumPy or a matrix of SciPy, of finite real numbers."""
    if isinstance(points, Tensor):
        checks.check_tensor(points, name)
        points = checks.half_to_float32(points).detach().cpu().resolve_conj().resolve_neg()
    points = points.astype(float).filled(np.nan) if np.ma.is_masked(points) else points
    rows = points.tocsr() if scipy.sparse.issparse(points) else np.asarray(points)
    if rows.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers, got {rows.dtype}; take columns of numbers")
    if rows.ndim != 2:
        raise ValueError(f"{name} must have shape (N, D), got {rows.shape}")
    if bad := int((~np.isfinite(rows.data if scipy.sparse.issparse(rows) else rows)).sum()):
        raise ValueError(f"{name} must be finite, got {bad} NaN or Inf; drop or impute them")
    return rows


def _graph_of(given: Any, num_nodes: int | None) -> Graph:
    for name in ("graph_", "P"):  # of umap.UMAP, of openTSNE's affinities
        given = getattr(given, name, given)
    if isinstance(given, Tensor) and given.shape[:1] == (2,) and not given.is_floating_point():
        found = Graph.from_edge_index(given, None, num_nodes)
    elif type(given) in (tuple, list) and len(given) == 2:
        found = Graph.from_edge_index(given[0], given[1], num_nodes)
    elif scipy.sparse.issparse(given):
        found = Graph.from_scipy(given)
    elif isinstance(given, Graph):
        found = given
    else:
        raise TypeError(
            "graph must be a Graph, a SciPy sparse matrix, edges (2, E), a pair of edges and weights, or have one of "
            f"these as graph_ or P, got {checks.describe(given)}{checks.way_out(given, 'graph', 'graph')}"
        )
    check_graph(found, "graph", "spectral_init")
    if not (found.weight > 0).any():
        raise ValueError(f"graph must have edges of positive weight, got none among {found.num_nodes} nodes")
    return found


def _by_components(graph: Graph, k: int, scale: str, solve: Solve, generator: torch.Generator | None) -> InitialLayout:
    """Return each component's coordinates in [−1, 1]; columns beyond its eigenvectors are random."""
    component = graph.connected_components()
    sizes = component.bincount()
    columns = torch.rand(len(component), k, generator=generator, dtype=graph.weight.dtype).to(graph.weight.device)
    columns = 2 * columns - 1
    eigenvalues, converged = columns.new_full((len(sizes), k), torch.inf), True
    residuals = eigenvalues.clone()
    for nodes, part in batches_of_components(graph, k + 1):
        parts, batch = component[nodes].unique_consecutive(return_inverse=True)
        # All pairs of a small component: other solvers leave room for k + 2.
        own = solve if sizes[parts].min() > k + 1 else dataclasses.replace(solve, solver=Auto())
        laplacian = Laplacian(part, "symmetric" if scale == "umap" else "random_walk")
        pairs = eigenpairs(laplacian, k + 1, own, fill=True)
        y, values = pairs.vectors[..., 1:].reshape(len(parts), -1, k), pairs.values.reshape(len(parts), -1)[:, 1:]
        is_known = values.isfinite()
        if scale == "tsne":  # a step of the walk, as in a diffusion map
            y = y * torch.where(is_known, 1 - values, 0)[:, None]
        most = y.abs().amax((1, 2), keepdim=True)
        y = y / torch.where(most > 0, most, 1)
        y = (y if part.mask is None else y[part.mask]).reshape(-1, k)
        columns[nodes] = torch.where(is_known[batch], y, columns[nodes])
        eigenvalues[parts] = values
        residuals[parts] = pairs.residuals.reshape(len(parts), -1)[:, 1:].masked_fill(~is_known, torch.inf)
        converged = converged and bool(pairs.converged.all())
    if (lacking := int(eigenvalues.isinf().all(0).sum())) > 0:
        way = f"; use k={sizes.max() - 1} at most" if sizes.max() > 1 else ""
        finding = f"the largest component of the graph has {sizes.max()} eigenvectors, with the trivial one{way}"
        checks.warn(f"the last {lacking} of {k} columns are random: {finding}", checks.GraphWarning)
    return InitialLayout(columns, component, eigenvalues, residuals, converged and bool(residuals.isfinite().all()))


def _places(component: Tensor, k: int, points: Any) -> Tensor:
    """Return the place ``(c, k)`` of each component, given points ``(N, D)`` of NumPy or SciPy, or None."""
    sizes = component.bincount()
    count = len(sizes)
    if count == 1:
        return component.new_zeros(1, k)
    if count <= 2 * k:
        axes = torch.eye(k, device=component.device)[: (count + 1) // 2]
        return torch.cat([axes, -axes])[:count]
    if points is None:
        side = next(m for m in range(2, count + 1) if m**k >= count)
        powers = side ** torch.arange(k, device=component.device)
        return torch.arange(count, device=component.device)[:, None] // powers % side
    label = component.cpu().numpy()
    shares = scipy.sparse.csr_array((1 / sizes.double().cpu().numpy()[label], (label, np.arange(len(label)))))
    means = shares @ points
    centroids = torch.from_numpy(means.toarray() if scipy.sparse.issparse(means) else means).to(component.device)
    # 100 neighbours, so that thousands of components do not make the graph of centroids dense.
    graph = HeatKernel()(centroids, knn_graph(centroids, min(count - 1, 100)))
    return eigenpairs(Laplacian(graph, "random_walk"), k + 1).vectors[:, 1:]
