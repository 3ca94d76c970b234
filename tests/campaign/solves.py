"""Eigenpairs of every family by every solver, in both precisions, alone and beside another graph."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.campaign import families, pairs
from tests.campaign.edges import Edges, graph_of
from tests.campaign.outcomes import Case, Finding, Outcome, is_due, watched
from tests.campaign.reference import Reference, reference, splitting
from torch_lapeig import ConvergenceWarning, Laplacian, ResolutionWarning, eigenpairs
from torch_lapeig.eigen import ChebyshevSubspace, Eigh, Lobpcg

Rng = np.random.Generator
SOLVERS: dict[str, Any] = {"default": None, "Eigh": Eigh(), "ChebyshevSubspace": ChebyshevSubspace()}
SOLVERS["ChebyshevSubspace in float32"] = ChebyshevSubspace(single=True)
SOLVERS |= {"Lobpcg": Lobpcg(), "Lobpcg without preconditioner": Lobpcg(preconditioner=None)}
NORMALIZATIONS = ["symmetric", "random_walk", "unnormalized"]
DTYPES = {"float32": torch.float32, "float64": torch.float64}
MOST_PAIRS = 40


def draw_k(rng: Rng, spectrum: Reference) -> int:
    """Return a number of pairs: half of the time one that splits a multiple eigenvalue, at times all."""
    most = min(MOST_PAIRS, spectrum.size)
    split = splitting(spectrum.values, most)
    kind = rng.random()
    if kind < 0.5 and split:
        return int(rng.choice(split))
    if kind < 0.6 and spectrum.size <= MOST_PAIRS:
        return spectrum.size - int(rng.integers(0, 2)) * (spectrum.size > 1)
    return min(families.size(rng, 1, most), most)


def takes(solver: str, k: int, graphs: list[Edges], normalization: str) -> bool:
    """Return whether a solver is asked: within its documented limits, and where a named one is not all too slow."""
    spectra = [reference(edges, normalization) for edges in graphs]
    if min(spectrum.size for spectrum in spectra) < k:
        return solver in ("default", "Eigh")
    return solver == "default" or max(edges.nodes for edges in graphs) <= 800


class Solve:
    """Cold solves. One graph is solved by the default in both precisions, alone and in a batch, and by two others."""

    name, share = "solve", 0.4

    def __init__(self, most: int = 2000) -> None:
        self.most = most

    def draw(self, rng: Rng) -> Iterator[Case]:
        return self.cases(rng, *families.draw(rng, families.mixed_size(rng, self.most)))

    def cases(self, rng: Rng, family: str, edges: Edges) -> Iterator[Case]:
        """Yield cases that share a graph, and so a reference."""
        other = families.draw(rng, families.size(rng, 2, max(3, min(300, 2 * edges.nodes))))[1]
        normalization = str(rng.choice(NORMALIZATIONS))
        k = draw_k(rng, reference(edges, normalization))
        precisions = ["float32", "float64"] if edges.narrow else ["float64"]
        named = rng.permutation([name for name in SOLVERS if name != "default"])[: int(rng.integers(1, 3))]
        requests = [("default", dtype, batch) for dtype in precisions for batch in (False, True)]
        requests += [(str(name), str(rng.choice(precisions)), bool(rng.random() < 0.3)) for name in named]
        for solver, dtype, batch in requests:
            graphs = [edges, other.narrowed() if dtype == "float32" else other] if batch else [edges]
            if batch and rng.random() < 0.5:
                graphs.reverse()
            if any(len(graph.pairs) == 0 for graph in graphs) or not takes(solver, k, graphs, normalization):
                continue
            dense = bool(rng.random() < (0.25 if max(g.nodes for g in graphs) <= 700 else 0.05))
            case = {"family": family, "graphs": graphs, "k": k, "normalization": normalization}
            yield {**case, "solver": solver, "dtype": dtype, "dense": dense}

    def check(self, case: Case) -> Outcome:
        graphs: list[Edges] = case["graphs"]
        laplacian = Laplacian(graph_of(graphs, DTYPES[case["dtype"]], dense=case["dense"]), case["normalization"])
        return solved(case, graphs, laplacian, case["k"])


def solved(case: Case, graphs: list[Edges], laplacian: Laplacian, k: int) -> Outcome:
    """Solve and compare; an answer that is not converged must have been warned of."""
    fill = k > laplacian.symmetric.fewest_active
    found: list[Finding] = []
    refused, answer = False, None
    with watched(found) as caught:
        answer = eigenpairs(laplacian, k, SOLVERS[case["solver"]], fill=fill)
    if answer is not None:
        said = {w.category for w in caught}
        if not answer.converged.all() and not said & {ConvergenceWarning, ResolutionWarning}:
            found.append(Finding("unconverged without a warning", str(answer.solver)))
        refused = not bool((answer.converged | ~answer.resolved).all())
        resolved = answer.resolved.reshape(-1).tolist()
        for item, edges, is_resolved in zip(pairs.answers(answer), graphs, resolved, strict=True):
            spectrum = reference(edges, case["normalization"])
            if ConvergenceWarning not in said:  # all solves have converged
                item = dataclasses.replace(item, converged=True)
                found += of_resolution(is_resolved, spectrum, k)
            found += pairs.check(item, spectrum, case["normalization"])
    strange = {w.category.__name__ for w in caught if not (is_due(w) or "nodes are isolated" in str(w.message))}
    found += [Finding("stray warning", ", ".join(sorted(strange)))] if strange else []
    return Outcome(case["solver"], case["family"], found, unconverged=refused)


def of_resolution(is_resolved: bool, spectrum: Reference, k: int) -> list[Finding]:
    """Return a finding where round-off hides eigenvalues in silence, or is said to hide what it does not."""
    # Beside one null vector of each component, the second value must be above the round-off of float64.
    parts = spectrum.components
    if k <= parts:
        return [] if is_resolved else [Finding("false alarm", f"k={k} null vectors")]
    second = float(spectrum.values[parts + 1]) if parts + 1 < spectrum.size else math.inf
    if is_resolved and second < torch.finfo(torch.float64).eps * spectrum.bound:
        return [Finding("round-off in silence", f"the second value is {second:.1e}, the bound {spectrum.bound:.1e}")]
    if not is_resolved and second > 20 * spectrum.round_off(torch.float64):
        return [Finding("false alarm", f"the second value is {second:.1e}, the bound {spectrum.bound:.1e}")]
    return []
