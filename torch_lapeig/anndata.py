"""Single cells: diffusion maps, starts for UMAP and label transfer on the neighbour graph that scanpy keeps in AnnData.

Nothing of anndata is imported: any object with its ``obs``, ``obsm``, ``obsp`` and ``uns`` will do.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy
import torch

from torch_lapeig.eigen import Laplacian, Solve, Solver, eigenpairs
from torch_lapeig.graph import DensityCorrected, Graph, Precomputed, SimpleWeights
from torch_lapeig.graph.weights import inverse_power
from torch_lapeig.initial import rows_of, spectral_init
from torch_lapeig.methods import HarmonicFunction
from torch_lapeig.methods.eigenmaps import check_time, decayed
from torch_lapeig.methods.on_graph import up_to_gap
from torch_lapeig.methods.semisupervised import ClassPrior
from torch_lapeig.support import checks

__all__ = ["diffmap", "label_transfer", "spectral"]


def diffmap(
    adata: Any,
    n_comps: int | Literal["eigengap"] = 15,
    neighbors_key: str | None = None,
    *,
    alpha: float = 1.0,
    time: float | None = None,
    max_comps: int = 30,
    solve: Solve | Solver | None = None,
    copy: bool = False,
) -> Any:
    """Write the diffusion map of the neighbour graph to the keys of ``scanpy.tl.diffmap``, which it replaces.

    ``obsm["X_diffmap"]``: eigenvectors of the symmetric transition matrix ``(N, n_comps)``, float32, the stationary one
    first. ``uns["diffmap_evals"]``: eigenvalues of the walk, descending. ``uns["diffmap_residuals"]``: the residual of
    each pair. ``scanpy.tl.dpt`` reads the first two. With a ``time`` also ``obsm["X_diffmap_scaled"]``, see there.

    Columns equal scanpy's up to signs and the basis of an eigenspace; of a disconnected graph all copies of 1 are
    found. scanpy takes the eigenvalues largest in size, these are the largest: they differ if some are near −1.

    Args:
        adata: an AnnData whose neighbours are computed (``scanpy.pp.neighbors``).
        n_comps: number of columns, the stationary one included. ``"eigengap"``: the number from 2 to ``max_comps``
            after which the gap of the eigenvalues is widest; ``obsm["X_diffmap"]`` has as many columns.
        neighbors_key: key of ``uns`` with the neighbours; default ``"neighbors"``.
        alpha: correction for the density of cells, see `DiffusionMap`; scanpy's is 1.
        time: diffusion time of the rows of `DiffusionMap` that are written, too, ``(N, n_comps − 1)``; ``math.inf``
            for all times, the space in which Palantir measures distances. None for none.
        solve: options of the eigensolve, a `Solve`, or just a solver.
        copy: write to a copy, and return it, as scanpy's functions do.

    Source: Coifman & Lafon 2006; Haghverdi, Buettner & Theis, *Bioinformatics* 31 (2015).

    >>> from types import SimpleNamespace
    >>> from torch_lapeig import knn_graph
    >>> cells = torch.rand(60, 5, generator=torch.Generator().manual_seed(0))
    >>> near = {"connectivities": knn_graph(cells, 8).to_scipy()}
    >>> adata = SimpleNamespace(obs={}, obsm={}, uns={}, obsp=near)
    >>> diffmap(adata, 5)
    >>> adata.obsm["X_diffmap"].shape, bool(adata.uns["diffmap_residuals"].max() < 1e-6)
    ((60, 5), True)
    """
    adata, graph = _with_graph(adata, neighbors_key, copy)
    if by_gap := isinstance(n_comps, str):
        checks.check_choice(n_comps, "n_comps", ("eigengap",))
    width = checks.check_count(max_comps, "max_comps", 2) if by_gap else checks.check_width(n_comps, "n_comps")
    time = None if time is None else check_time(time, "time")
    if time is not None and width < 2:
        raise ValueError("n_comps must be at least 2 with a time, the trivial column included, got 1")
    points = graph.weight.new_zeros(graph.num_nodes, 1)
    laplacian = Laplacian(DensityCorrected(alpha, SimpleWeights())(points, graph), "symmetric")
    least = 2 if by_gap else width
    if least > (most := laplacian.symmetric.fewest_active):
        raise ValueError(f"n_comps must be at most the number of cells with neighbours, {most}, got {least}")
    pairs = eigenpairs(laplacian, min(width, most), solve)
    k = int(up_to_gap(pairs, 2)[0].sum()) if by_gap else width
    if time is not None:
        rows = decayed(pairs.vectors[:, 1:] * inverse_power(laplacian.degrees, 0.5)[:, None], pairs, time)
        adata.obsm["X_diffmap_scaled"] = rows[:, : k - 1].float().numpy()
    adata.obsm["X_diffmap"] = pairs.vectors[:, :k].float().numpy()
    adata.uns["diffmap_evals"] = (1 - pairs.values[:k]).float().numpy()
    adata.uns["diffmap_residuals"] = pairs.residuals[:k].numpy()
    return adata if copy else None


def spectral(
    adata: Any, n_comps: int = 2, neighbors_key: str | None = None, *, seed: int | None = 0, copy: bool = False
) -> Any:
    """Write spectral coordinates of the neighbour graph to ``obsm["X_spectral"]``, to start ``scanpy.tl.umap`` from.

    ``scanpy.tl.umap(adata, init_pos="X_spectral")`` begins there, as with its own ``"spectral"``, whose solver can take
    hours on nearly disconnected graphs. ``uns["spectral_residuals"]`` has the residuals ``(components, n_comps)``. More
    than 2 ``n_comps`` components of the graph are placed by the representation that the neighbours were computed from.

    Args:
        adata, neighbors_key, copy: as for `diffmap`.
        n_comps: number of columns. seed: see `spectral_init`.

    >>> from types import SimpleNamespace
    >>> from torch_lapeig import knn_graph
    >>> near = {"connectivities": knn_graph(torch.rand(60, 5), 8).to_scipy()}
    >>> adata = SimpleNamespace(obs={}, obsm={}, uns={}, obsp=near)
    >>> spectral(adata)
    >>> adata.obsm["X_spectral"].shape
    (60, 2)
    """
    adata, graph = _with_graph(adata, neighbors_key, copy)
    place = adata.uns.get(neighbors_key or "neighbors", {}).get("params", {}).get("use_rep") or "X_pca"
    points = getattr(adata, "X", None) if place == "X" else adata.obsm.get(place)
    points = None if points is None else rows_of(points, "adata.X" if place == "X" else f"adata.obsm[{place!r}]")
    start = spectral_init(graph, n_comps, seed, points=points)
    adata.obsm["X_spectral"] = start.embedding.float().numpy()
    adata.uns["spectral_residuals"] = start.residuals.numpy()
    return adata if copy else None


def label_transfer(
    adata: Any,
    key: str,
    neighbors_key: str | None = None,
    *,
    key_added: str | None = None,
    class_prior: ClassPrior = "labels",
    unlabelled: Any = ("Unknown",),
    copy: bool = False,
) -> Any:
    """Carry labels of some cells along the neighbour graph to all cells: a `HarmonicFunction` of the graph.

    ``obs[key_added]``: the class of each cell, a categorical; missing if no path leads to a labelled cell.
    ``obs[f"{key_added}_score"]``: the share of the scores that its class has.

    Args:
        adata, neighbors_key, copy: as for `diffmap`; one AnnData of labelled and other cells, with a joint graph.
        key: column of ``obs`` with the labels; missing (NaN) or −1 for cells without one.
        key_added: default ``f"{key}_transferred"``.
        class_prior: as of `HarmonicFunction`; the default expects the shares of the classes among the labels.
        unlabelled: words that also mark cells without a label; the default is scANVI's. () for no word.

    Source: Zhu, Ghahramani & Lafferty, ICML 2003.

    >>> label_transfer(object(), "cell_type")
    Traceback (most recent call last):
    TypeError: adata must be an AnnData, with obsp, obsm, uns and obs, got object
    """
    adata, graph = _with_graph(adata, neighbors_key, copy)
    if key not in adata.obs:
        columns = ", ".join(map(str, adata.obs)) or "none"
        raise ValueError(f"key must be a column of obs, got {key!r}; there are {columns}")
    is_known = ~checks.are_unlabelled(adata.obs[key], unlabelled)
    labels = adata.obs[key].astype("category").where(is_known).cat.remove_unused_categories()
    codes = torch.tensor(labels.cat.codes.to_numpy(), dtype=torch.int64)
    if not is_known.any():
        raise ValueError(f"obs[{key!r}] must have a label for at least one cell, got only missing values and marks")
    model = HarmonicFunction(Precomputed("affinity"), class_prior=class_prior).fit(graph, codes)
    key_added = key_added or f"{key}_transferred"
    transferred, dtype = labels.astype(object), labels.dtype
    transferred[:] = [dtype.categories[code] if code >= 0 else None for code in model.predict().tolist()]
    adata.obs[key_added] = transferred.astype(dtype)
    adata.obs[f"{key_added}_score"] = model.predict_proba().amax(1).numpy()
    return adata if copy else None


def _with_graph(adata: Any, neighbors_key: str | None, copy: bool) -> tuple[Any, Graph]:
    """Return an AnnData to write to, a copy if asked for, and its neighbour graph in float64."""
    if not all(hasattr(adata, name) for name in ("obsp", "obsm", "uns", "obs")):
        raise TypeError(f"adata must be an AnnData, with obsp, obsm, uns and obs, got {checks.describe(adata)}")
    key = neighbors_key or "neighbors"
    if neighbors_key is not None and neighbors_key not in adata.uns:
        keys = ", ".join(adata.uns) or "none"
        raise ValueError(f"neighbors_key must be a key of uns, got {neighbors_key!r}; there are {keys}")
    place = adata.uns.get(key, {}).get("connectivities_key", "connectivities")
    if place not in adata.obsp:
        raise ValueError(f"adata has no obsp[{place!r}]: call scanpy.pp.neighbors(adata, key_added={neighbors_key!r})")
    found = adata.obsp[place]  # dense of scanpy.pp.neighbors(adata, method="gauss", knn=False)
    found = found if scipy.sparse.issparse(found) else scipy.sparse.csr_array(np.asarray(found, dtype=np.float64))
    return (adata.copy() if checks.check_flag(copy, "copy") else adata), Graph.from_scipy(found)
