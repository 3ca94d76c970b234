"""First and second derivatives of losses of eigenpairs against a dense reference and finite differences.

The reference is the closed form of the derivative of a matrix function, which has to agree with finite differences in a
random direction, of two step sizes that agree with each other: if not, nothing is judged ("undecided"). The step is a
fiftieth of the gap over the change of the matrix, so that the truncation error of the five-point rule is 10⁻⁶ or less.

How far the library may be off, relative to the norm of the gradient. Let g be the gap after the k-th value, δ the
smallest distance of different values among the first k, and b the bound of the spectrum. A projector's derivative is of
the size 1/g; the operator is known to eps · b, which turns vectors by eps · b / g, and the answer and the backward's
linear solve are accurate to a tolerance (10⁻¹⁰, 10⁻⁴) relative to g. A loss that is blind to the basis loses digits to
near-equal values only through the round-off of its own cotangents, eps · g / δ; of a loss that is not, δ stands in the
place of g. All with a safety factor of 100 or so: a finding is an error, not a lost digit.

Without a `DegeneracyWarning` (or a `ConvergenceWarning`) the gradient has to be right. Where the cut or, for a loss
that tells columns apart, an eigenspace is split to working precision of float64, there is no gradient: a warning has to
come. A warning where all is well is counted, but is no failure.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.campaign import families
from tests.campaign.edges import Edges
from tests.campaign.functions import KINDS, Function
from tests.campaign.outcomes import Case, Finding, Outcome, may_be_off, watched
from tests.campaign.reference import Reference, dense_laplacian, reference, splitting
from tests.campaign.solves import DTYPES, NORMALIZATIONS, SOLVERS

Rng = np.random.Generator
STEP = 0.02
SPLIT = 10 * torch.finfo(torch.float64).eps  # of the bound: values that no float64 solver tells apart
ILL = 1e-9  # of the bound: gaps below this leave finite differences no digits
LOOSE = {torch.float64: 1e-5, torch.float32: 2e-2}
SECOND_ORDER_NODES = 200


class Gradient:
    """Derivatives in the logarithms of the weights."""

    name, share = "gradient", 0.25

    def __init__(self, most: int = 700) -> None:
        self.most = most

    def draw(self, rng: Rng) -> Iterator[Case]:
        """Yield cases of a random graph, at times of one that the default does not solve densely."""
        large = rng.random() < 0.12
        n = families.size(rng, 440, self.most) if large and self.most > 440 else families.size(rng, 3, 150)
        return self.cases(rng, *families.draw(rng, n))

    def cases(self, rng: Rng, family: str, edges: Edges) -> Iterator[Case]:
        """Yield one loss of one graph: the default in both precisions, and another solver."""
        normalization = str(rng.choice(NORMALIZATIONS))
        if normalization == "random_walk":
            edges = _with_moderate_degrees(edges)
        spectrum = reference(edges, normalization)
        if spectrum.size < 2 or len(edges.pairs) > 20_000:
            return
        function = _draw_function(rng, spectrum, normalization)
        other = str(rng.choice([name for name in SOLVERS if name != "default"]))
        precisions = ["float64", "float32"] if edges.narrow else ["float64"]
        for solver, dtype in [("default", p) for p in precisions] + [(other, str(rng.choice(precisions)))]:
            case = {"family": family, "graphs": [edges], "function": vars(function).copy(), "solver": solver}
            yield {**case, "dtype": dtype, "dense": bool(rng.random() < 0.2)}

    def check(self, case: Case) -> Outcome:
        """Return the gradient of one loss, and in float64 its second derivative in a random direction."""
        edges, function, dtype = case["graphs"][0], Function(**case["function"]), DTYPES[case["dtype"]]
        truth = Truth(edges, function)
        second = dtype == torch.float64 and edges.nodes <= SECOND_ORDER_NODES
        log_scale = torch.zeros(len(edges.weight), dtype=dtype, requires_grad=True)
        findings, got = list[Finding](), None
        counts: dict[str, int] = {}
        with watched(findings) as caught:
            got = _derivatives(function, edges, log_scale, truth.direction.to(dtype), case, second)
        if got is not None:
            findings, counts = _judged(truth, got, may_be_off(caught), dtype)
        group = f"{case['solver']} {case['dtype']}"
        return Outcome(group, case["family"], findings, counts=counts)


def _with_moderate_degrees(edges: Edges) -> Edges:
    """Return the graph without edges 10²⁵ times lighter than others, so that D^-½ does not overflow."""
    keep = edges.weight >= 1e-25 * edges.weight.max()
    kept = Edges(edges.nodes, edges.pairs[keep], edges.weight[keep])
    degrees = kept.dense().sum(1)
    power = np.floor(np.log2(degrees[degrees > 0].min()))
    return Edges(kept.nodes, kept.pairs, kept.weight * 2.0**-power)  # a power of two leaves the digits as they are


def _draw_function(rng: Rng, spectrum: Reference, normalization: str) -> Function:
    """Return a loss with a cut in a random place, a third of the time where it splits a multiple eigenvalue."""
    kind = str(rng.choice(KINDS if normalization == "random_walk" else KINDS[:-1]))
    most = min(12, spectrum.size)
    split = splitting(spectrum.values, most)
    k = int(rng.choice(split)) if split and rng.random() < 0.2 else int(rng.integers(1, most + 1))
    k = max(k, 2) if kind == "diffusion" else k
    if kind == "diffusion":
        away = float(np.abs(1 - spectrum.values[:k]).min())
        parameter = float(rng.choice([1.0, 2.0] if away < 0.05 else [0.5, 1.0, 2.0]))
    else:
        parameter = float(10 ** rng.uniform(-1, 1)) / max(spectrum.bound / 2, 1e-300)
    return Function(kind, parameter, k, normalization, int(rng.integers(2**31)), bool(rng.random() < 0.4))


def _derivatives(
    function: Function, edges: Edges, log_scale: Tensor, direction: Tensor, case: Case, second: bool
) -> tuple[Tensor, Tensor | None]:
    """Return gradient, and the derivative of its inner product with the direction."""
    loss = function.by_library(edges, log_scale, SOLVERS[case["solver"]], case["dense"])
    (gradient,) = torch.autograd.grad(loss, log_scale, create_graph=second)
    if not second:
        return gradient, None
    (along,) = torch.autograd.grad((gradient * direction).sum(), log_scale)
    return gradient.detach(), along


class Truth:
    """True derivatives and their errors; finite differences only on request."""

    def __init__(self, edges: Edges, function: Function) -> None:
        self.edges, self.function = edges, function
        spectrum = reference(edges, function.normalization)
        k, self.bound = min(function.k, spectrum.size), spectrum.bound
        self.gap = spectrum.gap(k)
        apart = np.diff(spectrum.values[:k])
        equal = apart <= SPLIT * self.bound
        # Null vectors of several components are those of a closed form, which the library differentiates.
        is_null = spectrum.values[:k] <= SPLIT * self.bound
        self.among_null = function.kind == "columns" and int(is_null.sum()) > 1
        apart_by_loss = function.kind == "columns" and bool((equal & ~is_null[1:]).any())
        # A cut through eigenvalues that count for nothing is none: diffusion coordinates are 0 at λ = 1.
        is_felt = function.kind != "diffusion" or abs(1 - spectrum.values[k - 1]) > SPLIT * self.bound
        self.split = (self.gap <= SPLIT * self.bound and is_felt) or (apart_by_loss and not function.smooth)
        # By the symmetry of the graph a smooth loss may be blind to the basis after all.
        self.unclear = apart_by_loss and function.smooth
        self.apart = float(apart[~equal].min(initial=math.inf))
        self.narrowest = min(self.gap, self.apart) if function.kind == "columns" else self.gap
        rng = np.random.default_rng(function.seed + 2)
        self.direction = torch.from_numpy(rng.standard_normal(len(edges.weight)))

    def tolerance(self, dtype: torch.dtype) -> float:
        eps = torch.finfo(dtype).eps
        ratio = self.bound / self.narrowest
        if self.function.kind == "columns":
            ratio += LOOSE[dtype] / eps / 100 * self.gap / self.apart if math.isfinite(self.gap) else 0
        else:
            ratio += min(self.gap, self.bound) / self.apart
        return LOOSE[dtype] + 100 * eps * ratio

    def gradient(self) -> Tensor:
        log_scale = torch.zeros(len(self.edges.weight), dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(self.function.by_reference(self.edges, log_scale), log_scale)
        return gradient

    def differences(self) -> tuple[float, float, float, float]:
        """Return first and second derivative along the direction, each with an estimate of its error."""

        def matrix(t: float) -> Tensor:
            return dense_laplacian(self.edges, t * self.direction, self.function.normalization)[0]

        with torch.no_grad():
            change = float(((matrix(1e-5) - matrix(-1e-5)) / 2e-5).abs().sum(1).max())
            h = STEP * min(1.0, min(self.narrowest, self.bound) / max(change, 1e-300)) / 2
            places = (-4, -2, -1, 0, 1, 2, 4)
            f = {m: float(self.function.by_reference(self.edges, m * h * self.direction)) for m in places}
        first = [(8 * (f[s] - f[-s]) - (f[2 * s] - f[-2 * s])) / (12 * s * h) for s in (1, 2)]
        second = [(16 * (f[s] + f[-s]) - (f[2 * s] + f[-2 * s]) - 30 * f[0]) / (12 * (s * h) ** 2) for s in (1, 2)]
        # Errors are those of the larger step, by far; of the second derivative round-off may be more.
        return first[0], abs(first[1] - first[0]), second[1], abs(second[1] - second[0])


def _judged(
    truth: Truth, got: tuple[Tensor, Tensor | None], warned: bool, dtype: torch.dtype
) -> tuple[list[Finding], dict[str, int]]:
    gradient, along = got
    if not gradient.isfinite().all() or not (along is None or along.isfinite().all()):
        return [Finding("gradient not finite", f"warned: {warned}")], {}
    if truth.split and truth.function.k == 1:  # the trivial vector of several components, in closed form
        return [], {"(first of several null vectors)": 1}
    if truth.split:
        what = f"gap {truth.gap:.1e}, |gradient| {float(gradient.norm()):.2e}"
        return ([], {}) if warned else ([Finding("undefined gradient without a warning", what)], {})
    if truth.among_null:
        return [], {"(columns of several null vectors)": 1}
    if truth.unclear or truth.narrowest < ILL * truth.bound:
        return [], {"(undecided)": 1}
    if warned:
        needless = truth.tolerance(dtype) < 2 * LOOSE[dtype]
        return [], {"(warned, though well separated)": 1} if needless else {}
    exact, typical = truth.gradient(), float(truth.direction.norm()) / max(len(truth.direction), 1) ** 0.5
    first, first_error, second, second_error = truth.differences()
    size = float(exact.norm())
    scale = typical * size + abs(first)
    if abs(float(exact @ truth.direction) - first) > 1e-3 * scale or first_error > 1e-3 * scale:
        return [], {"(undecided)": 1}
    off, allowed = float((gradient.double() - exact).norm()), truth.tolerance(dtype) * size + _noise(truth, dtype)
    if off > allowed:
        unit = max(size, 1e-300)
        what = f"off by {off / unit:.1e} of |gradient| {size:.2e}, allowed {allowed / unit:.1e}"
        return [Finding("wrong gradient", f"{what}; gap {truth.gap:.1e}, next {truth.apart:.1e}")], {}
    if along is None:
        return [], {}
    return _second(truth, along, second, second_error, typical)


def _noise(truth: Truth, dtype: torch.dtype) -> float:
    """Return the size of round-off in a gradient that is zero by symmetry."""
    function, n = truth.function, truth.edges.nodes
    ratio = truth.bound / min(truth.narrowest, truth.bound)
    height = float(function.at(torch.tensor([0.0, 1.0], dtype=torch.float64))[0].max())
    height = max(height, function.k * height**2) if function.smooth else height
    if function.normalization == "random_walk":  # F has D^-½ on both sides
        degrees = reference(truth.edges, "random_walk").root_degree ** 2
        height = height * max(1.0, 1 / float(degrees[degrees > 0].min(initial=1.0)))
    return float(10 * torch.finfo(dtype).eps * ratio * height * n**0.5)


def _second(truth: Truth, along: Tensor, second: float, error: float, typical: float) -> tuple[list[Finding], Any]:
    got, size = float(along @ truth.direction), float(along.norm()) * typical
    scale = abs(second) + size
    if error > 1e-2 * scale:
        return [], {"(second undecided)": 1}
    allowed = (1e-2 + 10 * truth.tolerance(torch.float64)) * scale + 10 * error + _noise(truth, torch.float64)
    if abs(got - second) <= allowed:
        return [], {"(second order)": 1}
    return [Finding("wrong second derivative", f"{got:.6e}, not {second:.6e} ± {error:.0e}; gap {truth.gap:.1e}")], {}
