"""Diffusion maps of cells: scanpy's `tl.diffmap` beside `torch_lapeig.anndata.diffmap` on the same AnnData.

Residuals are those of the symmetric transition matrix, of the columns as they are written (float32); "at 64 bits" are
ours before they are rounded. Real data are those that scanpy and brainspace ship: 700 blood cells, and the group mean
of the connections between 400 regions of the brain, without negative ones. They are compared with NumPy's `eigh`; the
angle is the largest between the subspaces of the columns, as its sine.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from scipy.sparse import csr_array, csr_matrix

from benchmarks.peers import there
from benchmarks.record import Record
from benchmarks.timing import in_turn, median
from experiments.tables import Table
from torch_lapeig import HeatKernel, knn_graph
from torch_lapeig.anndata import diffmap

COMPONENTS = 15


def cells(n: int, genes: int = 20) -> NDArray[Any]:
    """A trajectory that branches twice, with noise in every direction."""
    rng = np.random.default_rng(0)
    knots = 12 * rng.normal(size=(6, genes)) / np.sqrt(genes)
    edges = np.array([(0, 1), (1, 2), (1, 3), (3, 4), (3, 5)])[rng.integers(0, 5, n)]
    share = rng.random((n, 1))
    return np.asarray((1 - share) * knots[edges[:, 0]] + share * knots[edges[:, 1]] + 0.3 * rng.normal(size=(n, genes)))


def symmetric_transitions(affinity: csr_array) -> csr_array:
    """The matrix of scanpy's diffusion map."""
    density = 1 / affinity.sum(0)
    corrected = csr_array(affinity.multiply(density[:, None]).multiply(density))
    root = 1 / np.sqrt(corrected.sum(0))
    return csr_array(corrected.multiply(root[:, None]).multiply(root))


def residual(transitions: csr_array, v: NDArray[Any]) -> float:
    v = v.astype(float) / np.linalg.norm(v.astype(float), axis=0)
    image = transitions @ v
    return float(np.linalg.norm(image - (v * image).sum(0) * v, axis=0).max())


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=None)


def run(record: Record, options: argparse.Namespace) -> None:
    """Both on synthetic cells of several numbers, and on real data."""
    if not there("scanpy"):
        record.show("scanpy is not installed.")
        return
    synthetic(record, options.sizes or ([2000] if options.quick else [10_000, 100_000]))
    real(record)


def maps_of(affinity: csr_array, rounds: int) -> dict[str, tuple[float, Any]]:
    """Return the seconds of both libraries and the AnnData that they wrote to."""
    import anndata
    import scanpy

    both, matrix = {}, csr_matrix(affinity)  # with a sparse array scanpy takes 50 times as long
    for name in ("torch_lapeig.anndata.diffmap", "scanpy.tl.diffmap"):
        keys = {"connectivities_key": "connectivities", "distances_key": "distances"}
        parts = {"connectivities": matrix, "distances": matrix}
        both[name] = anndata.AnnData(obs={"cell": np.arange(affinity.shape[0])}, obsp=parts)
        both[name].uns["neighbors"] = {**keys, "params": {"method": "gauss", "n_neighbors": 15}}
    calls: dict[str, Callable[[], object]] = {
        name: lambda way=way, adata=adata: way(adata, COMPONENTS)  # type: ignore[misc]
        for (name, adata), way in zip(both.items(), (diffmap, scanpy.tl.diffmap), strict=True)
    }
    seconds = in_turn(calls, rounds)
    return {name: (median(seconds[name]), adata) for name, adata in both.items()}


def synthetic(record: Record, sizes: list[int]) -> None:
    """Synthetic cells: the time of both, and their residuals."""
    columns = {"": "", "cells": ",", "s": ".2f", "residual": ".0e", "at 64 bits": ".0e", "eigenvalues differ by": ".0e"}
    table = Table(f"Diffusion maps, {COMPONENTS} columns, 15 neighbours", columns)
    for n in sizes:
        points = torch.from_numpy(cells(n))
        affinity = csr_array(HeatKernel()(points, knn_graph(points, 15)).to_scipy())
        transitions = symmetric_transitions(affinity)
        (name, (seconds, ours)), (peer, (longer, theirs)) = maps_of(affinity, 1 if n > 20_000 else 3).items()
        worst, theirs_worst = (residual(transitions, adata.obsm["X_diffmap"]) for adata in (ours, theirs))
        table.add(name, n, seconds, worst, ours.uns["diffmap_residuals"].max(), None)
        apart = np.abs(ours.uns["diffmap_evals"] - theirs.uns["diffmap_evals"]).max()
        table.add(peer, n, longer, theirs_worst, None, apart)
    record.show(table)


def shipped() -> dict[str, csr_array]:
    """Return the affinities of data that scanpy and, where it is installed, brainspace bring along."""
    import scanpy

    found = {"pbmc68k_reduced": csr_array(scanpy.datasets.pbmc68k_reduced().obsp["connectivities"])}
    if there("brainspace"):
        origin = Path(importlib.util.find_spec("brainspace").origin)  # type: ignore[union-attr, arg-type]
        file = origin.parent / "datasets/matrices/main_group/schaefer_400_mean_connectivity_matrix.csv"
        kernel = np.loadtxt(file, delimiter=",").clip(0)
        found["schaefer_400"] = csr_array((kernel + kernel.T) / 2)
    return found


def real(record: Record) -> None:
    """Data of the libraries: both beside a dense solver."""
    columns = {"": "", "of": "", "nodes": ",", "s": ".3f", "residual": ".0e", "eigenvalue error": ".0e", "angle": ".0e"}
    table = Table(f"Diffusion maps of real data, {COMPONENTS} columns, beside `eigh`", columns)
    for data, affinity in shipped().items():
        transitions = symmetric_transitions(affinity)
        values, v = (found[..., ::-1][..., :COMPONENTS] for found in np.linalg.eigh(transitions.toarray()))
        for name, (seconds, adata) in maps_of(affinity, 3).items():
            y = adata.obsm["X_diffmap"].astype(float)
            error = np.abs(adata.uns["diffmap_evals"] - values).max()
            angle = np.sin(subspace_angles(y, v).max())
            table.add(name, data, affinity.shape[0], seconds, residual(transitions, y), error, angle)
    record.show(table)
