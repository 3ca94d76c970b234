"""Diffusion maps of cells: scanpy's `tl.diffmap` beside `torch_lapeig.anndata.diffmap` on the same AnnData.

Residuals are those of the symmetric transition matrix, of the columns as they are written (float32); "at 64 bits" are
ours before they are rounded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

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
    """Both on synthetic cells of several numbers."""
    if not there("scanpy"):
        record.show("scanpy is not installed.")
        return
    import anndata
    import scanpy

    columns = {"": "", "cells": ",", "s": ".2f", "residual": ".0e", "at 64 bits": ".0e", "eigenvalues differ by": ".0e"}
    table = Table(f"Diffusion maps, {COMPONENTS} columns, 15 neighbours", columns)
    for n in options.sizes or ([2000] if options.quick else [10_000, 100_000]):
        points = torch.from_numpy(cells(n))
        affinity = csr_array(HeatKernel()(points, knn_graph(points, 15)).to_scipy())
        transitions = symmetric_transitions(affinity)
        ours, theirs = (
            anndata.AnnData(obsm={"X_pca": points.numpy()}, obsp={"connectivities": affinity}) for _ in "ab"
        )
        for adata in (ours, theirs):
            keys = {"connectivities_key": "connectivities", "distances_key": "distances"}
            adata.uns["neighbors"] = {**keys, "params": {"method": "gauss", "n_neighbors": 15}}
            adata.obsp["distances"] = affinity
        calls: dict[str, Callable[[], object]] = {
            "torch_lapeig.anndata.diffmap": lambda adata=ours: diffmap(adata, COMPONENTS),  # type: ignore[misc]
            "scanpy.tl.diffmap": lambda adata=theirs: scanpy.tl.diffmap(adata, COMPONENTS),  # type: ignore[misc]
        }
        seconds = in_turn(calls, 1 if n > 20_000 else 3)
        exact = ours.uns["diffmap_residuals"].max()
        apart = np.abs(ours.uns["diffmap_evals"] - theirs.uns["diffmap_evals"]).max()
        for (name, times), adata in zip(seconds.items(), (ours, theirs), strict=True):
            at_64 = exact if adata is ours else None
            worst = residual(transitions, adata.obsm["X_diffmap"])
            table.add(name, n, median(times), worst, at_64, apart if adata is theirs else None)
    record.show(table)
