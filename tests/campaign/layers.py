"""Adversarial points through `LaplacianEigenmaps` as a layer: every weighting, batches with masks, autocast, steps.

Outputs and gradients are finite, whatever the points. Right is judged where finite differences in float64 (of the
layer with `Eigh` on the edges of the unmoved points) agree for two step sizes and on both sides, eigenvalues are
separated enough for the precision, and no warning has come. Points move by a fraction of the distance to their nearest
neighbour, and errors are relative to the gradient in these units: a twentieth of it in float64, a third in float32.

A few steps along the gradient follow, as a network under training would make them; those have to be finite only.
Refusals that the documentation names (copies within `SelfTuning`, no edges left) are counted, and are no failures.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torch_lapeig as tl
from tests.campaign import clouds, families
from tests.campaign.edges import Floats
from tests.campaign.outcomes import Case, Finding, Outcome
from tests.campaign.solves import DTYPES
from torch_lapeig.eigen import Eigh
from torch_lapeig.graph import Weighting

Rng = np.random.Generator
REFUSALS = re.compile("are copies of it|nodes of positive degree|at least one neighbour|no component of two")
STEPS = 3
SMALL_STEP = 1e-5  # of finite differences, in distances to the nearest neighbour
ACCURACY = {torch.float64: 0.05, torch.float32: 0.33}
SEPARATION = {torch.float64: 1e-8, torch.float32: 2e-4}  # of distinct eigenvalues, over the bound 2 of the spectrum
# Weightings by a bandwidth and another number in (0, 1).
WEIGHTINGS: dict[str, Callable[[float, float], Any]] = {
    "simple": lambda t, number: tl.SimpleWeights(),
    "heat": lambda t, number: tl.HeatKernel(t),
    "heat median": lambda t, number: tl.HeatKernel(),
    "heat component-median": lambda t, number: tl.HeatKernel("component-median"),
    "heat learnable": lambda t, number: tl.HeatKernel(learnable=True),
    "self-tuning": lambda t, number: tl.SelfTuning(1 + int(8 * number)),
    "density-corrected": lambda t, number: tl.DensityCorrected(number),
    "density-corrected heat": lambda t, number: tl.DensityCorrected(1.0, tl.HeatKernel(t)),
    "density-corrected self-tuning": lambda t, number: tl.DensityCorrected(number, tl.SelfTuning(3)),
    "kernel": lambda t, number: tl.KernelWeights(lambda d2: 1 / (1 + d2 / t)),
    "improved": lambda t, number: tl.ImprovedWeights(),
}


class Layer:
    """Points to embedding and back."""

    name, share = "layer", 0.25

    def __init__(self, most: int = 700) -> None:
        self.most = most

    def draw(self, rng: Rng) -> Iterator[Case]:
        """Yield one cloud or a batch, by the layer in both precisions, and under autocast."""
        large = self.most > 440 and rng.random() < 0.12
        n = families.size(rng, 440, self.most) if large else families.size(rng, 6, 150)
        name = str(rng.choice(list(clouds.CLOUDS if rng.random() < 0.25 else clouds.IRREGULAR)))
        scale = float(10 ** rng.uniform(-9, 9)) if rng.random() < 0.3 else 1.0
        parts = [clouds.CLOUDS[name](rng, n) for _ in range(int(rng.choice([1, 1, 2, 3])))]
        parts = [part[:, : min(p.shape[1] for p in parts)] * scale for part in parts]
        x, mask = _padded(rng, [part.astype(np.float32).astype(np.float64) for part in parts])
        exact, _ = _padded(rng, parts)
        options = _draw_options(rng, parts[0])
        seed = int(rng.integers(2**31))
        case = {"family": f"{name}, {options['weighting']}", "mask": mask, **options, "seed": seed}
        for dtype, autocast in (("float64", False), ("float32", False), ("float32", True)):
            yield {**case, "points": exact if dtype == "float64" else x, "dtype": dtype, "autocast": autocast}

    def check(self, case: Case) -> Outcome:
        dtype = DTYPES[case["dtype"]]
        x: Tensor = case["points"].to(dtype)
        move = _movement(case)
        counts: dict[str, int] = {}
        group = case["dtype"] + (" autocast" if case["autocast"] else "")
        findings, tests = [], 0
        try:
            for step in range(1 + STEPS):
                tests += 1
                y, gradient, said = _pass(case, x)
                scaled = gradient.double() * move
                findings = _finite(y, gradient, case)
                if step == 0 and not findings:
                    findings, counts = _compared(case, y, scaled, said)
                if findings:
                    break
                x = (x.double() + 0.3 * move * scaled / scaled.abs().amax().clamp_min(1e-300)).to(dtype)
        except ValueError as error:
            if not REFUSALS.search(str(error)):
                findings = [Finding("crash", f"ValueError: {str(error)[:160]}")]
            counts = {"(refused)": 1}
        except Exception as error:
            findings = [Finding("crash", f"{type(error).__name__}: {str(error)[:160]}")]
        return Outcome(group, case["family"], findings, tests=tests, counts=counts)


def _padded(rng: Rng, parts: list[Floats]) -> tuple[Tensor, Tensor | None]:
    """Return one cloud unchanged; several padded to a batch with a mask."""
    if len(parts) == 1:
        return torch.from_numpy(parts[0].copy()), None
    sizes = [max(4, len(part) - 3 * b) for b, part in enumerate(parts)]
    x = torch.zeros(len(parts), max(sizes), parts[0].shape[1], dtype=torch.float64)
    for b, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        x[b, :size] = torch.from_numpy(part[:size])
    return x, torch.arange(x.shape[1]) < torch.tensor(sizes)[:, None]


def _draw_options(rng: Rng, x: Floats) -> dict[str, Any]:
    """Return arguments of the layer; a bandwidth that mostly suits the points."""
    d2 = clouds.squared_distances(x)
    k = min(int(rng.integers(2, 11)), len(x) - 1)
    near = np.sort(d2, 1)[:, 1 : k + 1]
    median = float(np.median(near)) or float(near.max()) or 1.0
    normalization = str(rng.choice(["random_walk", "random_walk", "unnormalized"]))
    options = {
        "weighting": "heat median" if rng.random() < 0.25 else str(rng.choice(list(WEIGHTINGS))),  # often the default
        "t": median * float(rng.choice([0.1, 1.0, 1.0, 1.0, 10.0, 1e4])),
        "number": float(rng.random()),
        "k": k,
        "radius": 1.5 * median**0.5 if rng.random() < 0.15 else 0.0,
        "symmetrize": str(rng.choice(["union", "mutual", "mean"])),
        "n_components": int(rng.integers(1, 5)),
        "normalization": normalization,
        "scale": str(rng.choice(["unit", "degree"])),
        "diffusion": 0.0 if normalization == "unnormalized" else float(rng.choice([0.0, 0.0, 1.0])),
        "components": "separate" if rng.random() < 0.2 else "joint",
    }
    # Drawn for every scale, so that a seed's cases stay what they were, though only one scale takes it.
    return options if options["scale"] == "degree" else {**options, "diffusion": 0.0}


def _rule(case: Case) -> tl.KNN | tl.Radius:
    return tl.Radius(case["radius"]) if case["radius"] > 0 else tl.KNN(case["k"], case["symmetrize"])


def _layer(case: Case, rule: Any, **changes: Any) -> tl.LaplacianEigenmaps:
    options = {name: case[name] for name in ("normalization", "scale", "diffusion", "components")}
    return tl.LaplacianEigenmaps(case["n_components"], rule, **options, **changes)


def _weighting(case: Case, dtype: torch.dtype) -> Weighting:
    found: Weighting = WEIGHTINGS[case["weighting"]](case["t"], case["number"]).to(dtype)
    return found


def _loss(y: Tensor, case: Case) -> Tensor:
    """Return Σ over columns of (Σ over nodes of h y)² / 2: the signs of the columns do not matter."""
    h = torch.from_numpy(np.random.default_rng(case["seed"]).standard_normal(tuple(y.shape))).to(y)
    return (y * h).sum(-2).square().sum() / 2


def _pass(case: Case, x: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Return embedding and gradient of the loss; whether a warning has come."""
    x = x.detach().requires_grad_()
    layer = _layer(case, _rule(case), weights=_weighting(case, x.dtype))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autocast("cpu", torch.bfloat16, enabled=case["autocast"]):
            y = layer(x, mask=case["mask"])
            loss = _loss(y, case) + 0 * x.sum()  # weights that are 1 do not depend on the points
            if case["seed"] % 2:
                loss.backward()
        if not case["seed"] % 2:
            loss.backward()
    assert x.grad is not None
    return y.detach(), x.grad, bool({w.category for w in caught} & {tl.DegeneracyWarning, tl.ConvergenceWarning})


def _finite(y: Tensor, gradient: Tensor, case: Case) -> list[Finding]:
    found = []
    if not y.isfinite().all():
        found.append(Finding("output not finite", f"{int((~y.isfinite()).sum())} of {y.numel()}"))
    if y.dtype != DTYPES[case["dtype"]]:
        found.append(Finding("output of another dtype", str(y.dtype)))
    if not gradient.isfinite().all():
        found.append(Finding("gradient not finite", f"{int((~gradient.isfinite()).sum())} of {gradient.numel()}"))
    mask = case["mask"]
    if mask is not None and (y[~mask].any() or gradient[~mask].any()):
        found.append(Finding("padding", "rows of padding are not zero"))
    return found


def _movement(case: Case) -> Tensor:
    """Return how far each point may move: the distance to its nearest neighbour that is no copy."""
    # Zero for padding, and where a small part of that is round-off of the point: nothing can be said of its gradient.
    x: Tensor = case["points"]
    batch = x if x.ndim == 3 else x[None]
    mask = case["mask"] if case["mask"] is not None else torch.ones(batch.shape[:2], dtype=torch.bool)
    found = torch.zeros(batch.shape[:2], dtype=torch.float64)
    for b, points in enumerate(batch):
        inside = points[mask[b]]
        d2 = torch.from_numpy(clouds.squared_distances(inside.numpy()))
        nearest = torch.where(d2 > 0, d2, torch.inf).amin(1).sqrt()
        resolved = SMALL_STEP * nearest > 1e4 * torch.finfo(torch.float64).eps * inside.abs().amax(1)
        found[b, mask[b]] = torch.where(nearest.isfinite() & resolved, nearest, 0)
    return found.reshape(x.shape[:-1])[..., None]


def _compared(case: Case, y: Tensor, gradient: Tensor, said: bool) -> tuple[list[Finding], dict[str, int]]:
    """Return the gradient, in units of the movement, against finite differences of the float64 layer."""
    dtype = y.dtype
    if said:
        return [], {"(warned)": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            known = _differences(case, dtype)
        except ValueError:
            known = None  # float64 refuses
    if known is None:
        return [], {"(undecided)": 1}
    direction, first, error, value = known
    # The loss itself is compared too: where it differs, so may the gradient, and that is `solve`'s matter.
    loss = float(_loss(y.double(), case))
    size, got = float(gradient.norm()), float((gradient * direction).sum())
    scale = max(abs(first), size)
    if error > 0.01 * scale or abs(loss - value) > 0.05 * abs(value):
        return [], {"(undecided)": 1}
    if abs(got - first) <= ACCURACY[dtype] * scale:
        return [], {"(right)": 1}
    return [Finding("wrong gradient", f"{got:.4e}, not {first:.4e} ± {error:.0e}; |gradient| {size:.2e}")], {}


def _differences(case: Case, dtype: torch.dtype) -> tuple[Tensor, float, float, float] | None:
    """Return a direction, the derivative along it with its error, and the loss; None where that says nothing."""
    x: Tensor = case["points"]
    graph = _rule(case)(x, case["mask"])
    weights, layer = _weighting(case, torch.float64), _layer(case, tl.Precomputed("affinity"), solve=Eigh())
    weighted = weights(x, graph)
    if not _separated(layer, weighted, dtype) or not _same_edges(case, weighted, dtype):
        return None

    def loss(points: Tensor) -> float:
        return float(_loss(layer(weights(points, graph)), case))

    generator = torch.Generator().manual_seed(case["seed"])
    move = _movement(case)
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64) * (move > 0)
    h, here = SMALL_STEP, loss(x)
    there = {m: loss(x + m * h * move * direction) for m in (-4, -1, 1, 4)}
    first = [(there[m] - there[-m]) / (2 * m * h) for m in (1, 4)]
    kink = abs(there[4] + there[-4] - 2 * here) / (8 * h)
    return direction, first[0], max(abs(first[1] - first[0]), kink), here


@torch.no_grad()
def _separated(layer: tl.LaplacianEigenmaps, graph: tl.Graph, dtype: torch.dtype) -> bool:
    """Return whether all eigenvalues that matter are far enough apart for the precision, beside the trivial ones."""
    found = layer.embed(graph)
    degree = float(graph.pattern.sum_rows(graph.weight).max())
    largest = 2 * degree if layer.normalization == "unnormalized" else 2.0
    for pairs in found.pairs:
        values = pairs.values.reshape(-1, pairs.values.shape[-1])
        apart = torch.cat([values.diff(dim=1), pairs.gap.reshape(-1, 1)], 1).nan_to_num(torch.inf, torch.inf)
        if float(apart.min()) < SEPARATION[dtype] * largest:
            return False
    return True


@torch.no_grad()
def _same_edges(case: Case, graph: tl.Graph, dtype: torch.dtype) -> bool:
    """Return whether no weight that is there in float64 is lost in ``dtype``, and no degree is near its limits."""
    if dtype == torch.float64:
        return True
    x = case["points"].to(dtype)
    rounded = _weighting(case, dtype)(x, _rule(case)(x, case["mask"]))
    same = rounded.weight.shape == graph.weight.shape and bool(((rounded.weight > 0) == (graph.weight > 0)).all())
    degrees = tl.Laplacian(graph).degrees
    positive = degrees[degrees > 0]
    return same and len(positive) > 0 and float(positive.min()) > 1e-30 and float(positive.max()) < 1e30
