"""Signed and magnetic Laplacians of the families' graphs, with random signs and directions, against LAPACK.

The same bounds as in `pairs` and `gradients`: an answer may be off by round-off, its residual and, of gradients, what
the gap after the k-th value allows. The loss is Re tr(G Y f(Λ) Yᴴ) of a random Hermitian G with f = exp(−t λ), blind to
phases and to the basis of an eigenspace, so that its gradient is exact at equal eigenvalues. The truth is the closed
form of the derivative of a matrix function (Daleckii and Krein) of a dense H that PyTorch differentiates.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.campaign import families
from tests.campaign.edges import Edges
from tests.campaign.functions import Function, Spectral
from tests.campaign.gradients import ILL, LOOSE, SPLIT
from tests.campaign.outcomes import Case, Finding, Outcome, is_due, may_be_off, watched
from tests.campaign.pairs import answers, check
from tests.campaign.reference import Reference, splitting
from tests.campaign.solves import DTYPES
from torch_lapeig import DirectedGraph, Eigenpairs, MagneticLaplacian, SignedGraph, SignedLaplacian
from torch_lapeig import eigenpairs as solve_for

Rng = np.random.Generator
KINDS = ["magnetic", "signed", "balanced"]
CHARGES = [0.0, 0.05, 0.1, 0.25, 1 / 3, 0.5]
MOST_PAIRS = 12


class Directed:
    """Eigenpairs of one operator by the default, and the gradient of one loss in the logarithms of its weights."""

    name, share = "directed", 0.15

    def draw(self, rng: Rng) -> Iterator[Case]:
        """Yield cases of a random graph, at times of one that the default does not solve densely."""
        n = families.size(rng, 150, 400) if rng.random() < 0.15 else families.size(rng, 2, 120)
        return self.cases(rng, *families.draw(rng, n))

    def cases(self, rng: Rng, family: str, edges: Edges) -> Iterator[Case]:
        """Yield one operator in the precisions that its weights allow."""
        case = {"family": family, "graphs": [edges], "kind": str(rng.choice(KINDS)), "q": float(rng.choice(CHARGES))}
        case |= {"normalization": str(rng.choice(["symmetric", "unnormalized"])), "dense": bool(rng.random() < 0.3)}
        case |= {"seed": int(rng.integers(2**31))}
        values = Truth(case).values
        split = splitting(values, min(MOST_PAIRS, len(values)))
        if len(values) == 0 or len(edges.pairs) > 20_000:
            return
        k = int(rng.choice(split)) if split and rng.random() < 0.3 else int(rng.integers(1, MOST_PAIRS + 1))
        for dtype in ["float64", "float32"] if edges.narrow else ["float64"]:
            yield {**case, "k": min(k, len(values)), "dtype": dtype}

    def check(self, case: Case) -> Outcome:
        truth = Truth(case)
        log_scale = torch.zeros(len(truth.weight), dtype=DTYPES[case["dtype"]], requires_grad=True)
        findings: list[Finding] = []
        counts: dict[str, int] = {}
        is_unconverged = False
        with watched(findings) as caught:
            pairs = truth.solved(log_scale)
            findings += truth.judged(pairs)
            is_unconverged = not bool(pairs.converged)
            if is_unconverged and not any(is_due(w) for w in caught):
                findings.append(Finding("unconverged without a warning", str(pairs.solver)))
            (gradient,) = torch.autograd.grad(truth.loss(pairs), log_scale)
            found, counts = truth.judged_gradient(gradient, may_be_off(caught))
            findings += found
        group, family = f"default {case['dtype']}", f"{case['kind']} {case['family']}"
        return Outcome(group, family, findings, is_unconverged, counts=counts)


class Arcs(NamedTuple):
    """Ends int64 ``(2, A)`` of arcs, the number of the edge of each, and its factor."""

    ends: Tensor
    edge: Tensor
    factor: Tensor


class Truth:
    """A dense Hermitian matrix of a case, its spectrum, and the loss."""

    def __init__(self, case: Case) -> None:
        edges: Edges = case["graphs"][0]
        self.case, self.n, self.weight = case, edges.nodes, torch.from_numpy(edges.weight)
        self.arcs = _arcs(edges, case["kind"], np.random.default_rng(case["seed"]))
        matrix, self.active = self.matrix(torch.zeros(len(self.weight), dtype=torch.float64))
        self.bound = 2 * float(matrix.diagonal().real.max())
        self.values = torch.linalg.eigvalsh(matrix[self.active][:, self.active]).numpy()
        degrees, longest = matrix.diagonal().real, 2 * int((matrix != 0).sum(1).max())  # of real and imaginary parts
        whole = matrix.numpy(), self.values, self.active.numpy(), degrees.sqrt().numpy()
        self.reference = Reference(*whole, self.bound, longest)

    def affinity(self, log_scale: Tensor) -> Tensor:
        """Return W ``(N, N)`` with each weight times the exponential of its ``log_scale``."""
        weight = (self.weight.to(log_scale) * log_scale.exp())[self.arcs.edge] * self.arcs.factor.to(log_scale)
        return weight.new_zeros(self.n, self.n).index_put(tuple(self.arcs.ends), weight)

    def matrix(self, log_scale: Tensor) -> tuple[Tensor, Tensor]:
        w = self.affinity(log_scale)
        half = (w + w.mT) / 2 if self.case["kind"] == "magnetic" else w
        both = torch.where(half > 0, half, 1)
        angle = math.pi * self.case["q"] * (w - w.mT) / both if self.case["kind"] == "magnetic" else 0 * w
        degrees = half.abs().sum(1)
        active = degrees.detach() > torch.finfo(DTYPES[self.case.get("dtype", "float64")]).tiny
        others = torch.polar(half.abs(), angle) * half.sign()
        loops = others.diagonal().real
        diagonal = degrees - loops
        diagonal = torch.where(loops >= 0, (half - torch.diag(half.diagonal())).abs().sum(1), diagonal)
        h = torch.diag(diagonal).to(others) - (others - torch.diag(others.diagonal()))
        if self.case["normalization"] == "unnormalized":
            return h, active
        s = torch.where(active, torch.where(active, degrees, 1).rsqrt(), 0)
        return s[:, None] * h * s, active

    def solved(self, log_scale: Tensor) -> Eigenpairs:
        case, (ends, edge, factor) = self.case, self.arcs
        kind = DirectedGraph if case["kind"] == "magnetic" else SignedGraph
        if case["dense"]:
            graph = kind.from_dense(self.affinity(log_scale))
        else:
            weight = (self.weight.to(log_scale) * log_scale.exp())[edge] * factor.to(log_scale)
            graph = kind.from_edge_index(ends, weight, self.n)
        if isinstance(graph, DirectedGraph):
            return MagneticLaplacian(graph, case["q"], case["normalization"]).eigenpairs(case["k"])
        return solve_for(SignedLaplacian(graph, case["normalization"]), case["k"])

    def judged(self, pairs: Eigenpairs) -> list[Finding]:
        (answer,) = answers(pairs)
        return check(answer, self.reference, self.case["normalization"])

    def _weights(self) -> tuple[Tensor, float]:
        """Return a random Hermitian matrix and the time of the heat kernel."""
        rng = np.random.default_rng(self.case["seed"] + 1)
        g = rng.standard_normal((self.n, self.n)) + 1j * rng.standard_normal((self.n, self.n))
        return torch.from_numpy(g + g.conj().T), 1 / self.bound

    def loss(self, pairs: Eigenpairs) -> Tensor:
        """Return Re tr(G Y exp(−t Λ) Yᴴ)."""
        (g, t), y = self._weights(), pairs.vectors
        g = g.to(torch.complex64 if pairs.values.dtype == torch.float32 else torch.complex128)
        y = y.to(g)
        return (g.mT * (y @ torch.matrix_exp(-t * pairs.projected.to(g)) @ y.mH)).sum().real

    def gradient(self) -> Tensor:
        log_scale = torch.zeros(len(self.weight), dtype=torch.float64, requires_grad=True)
        g, t = self._weights()
        heat = Function("heat", t, self.case["k"], self.case["normalization"], self.case["seed"])
        kernel = Spectral.apply(*self.matrix(log_scale), heat)
        return torch.autograd.grad((g.mT * kernel).sum().real, log_scale)[0]

    def judged_gradient(self, gradient: Tensor, is_warned: bool) -> tuple[list[Finding], dict[str, int]]:
        if not gradient.isfinite().all():
            return [Finding("gradient not finite", f"warned: {is_warned}")], {}
        gap, eps, loose = self.reference.gap(self.case["k"]), torch.finfo(gradient.dtype).eps, LOOSE[gradient.dtype]
        if gap <= SPLIT * self.bound:
            return ([], {}) if is_warned else ([Finding("undefined gradient without a warning", f"gap {gap:.1e}")], {})
        if gap < ILL * self.bound:
            return [], {"(undecided)": 1}
        apart = np.diff(self.values[: self.case["k"]])
        apart = float(apart[apart > SPLIT * self.bound].min(initial=math.inf))
        allowed = loose + 100 * eps * (self.bound / gap + min(gap, self.bound) / apart)
        if is_warned:
            return [], {"(warned, though well separated)": 1} if allowed < 2 * loose else {}
        exact = self.gradient()
        size, off = float(exact.norm()), float((gradient.double() - exact).norm())
        noise = 10 * eps * self.bound / min(gap, self.bound) * self.n
        if off > allowed * size + noise:
            what = f"off by {off / max(size, 1e-300):.1e} of {size:.2e}, allowed {allowed:.1e}; gap {gap:.1e}"
            return [Finding("wrong gradient", what)], {}
        return [], {"(gradient at equal eigenvalues)": int((np.diff(self.values[: self.case["k"]]) <= SPLIT).any())}


def _arcs(edges: Edges, kind: str, rng: Rng) -> Arcs:
    """Return arcs with random directions, or both directions of edges with random signs or those of two camps."""
    i, j = torch.from_numpy(edges.pairs.T.copy())
    edge, is_loop = torch.arange(len(i)), i == j
    if kind == "magnetic":
        forth = torch.from_numpy(rng.choice([0.0, 0.25, 0.5, 1.0], len(i), p=[0.35, 0.15, 0.15, 0.35]))
        back = 1 - forth
        forth = torch.where(is_loop, 1.0, forth)
    else:
        camp = torch.from_numpy(rng.choice([-1.0, 1.0], edges.nodes))
        signs = torch.from_numpy(rng.choice([-1.0, 1.0], len(i)))
        forth = back = camp[i] * camp[j] if kind == "balanced" else signs
    keep_forth, keep_back = forth != 0, (back != 0) & ~is_loop
    ends = torch.cat([torch.stack([i, j])[:, keep_forth], torch.stack([j, i])[:, keep_back]], 1)
    return Arcs(ends, torch.cat([edge[keep_forth], edge[keep_back]]), torch.cat([forth[keep_forth], back[keep_back]]))
