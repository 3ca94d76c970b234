"""Pencils K u = λ M u of random graphs with a mass matrix on their edges, against SciPy's dense `eigh(K, M)`.

K is a Laplacian, at times with positive numbers on its diagonal; masses span up to four orders of magnitude, beyond
which the reference has no digits. Values are judged against the gap after them, the gradient of a heat kernel against
central differences of the reference along a random direction. In half of the symmetric graphs M keeps the symmetry.
"""

from collections.abc import Iterator

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from tests.campaign import families
from tests.campaign.edges import Floats
from tests.campaign.outcomes import Case, Finding, Outcome, may_be_off, watched
from tests.campaign.reference import reference
from torch_lapeig import Eigenpairs, eigenpairs

Rng = np.random.Generator
LAYOUTS = ("dense", "coo")
MOST_PAIRS = 10
CLEAR = 1e-5  # gap over λ_{k+1}, from which on a gradient is judged
STEP = 1e-6  # of the difference, relative to the entries


class PencilProbe:
    """Pairs of one pencil by the default solver, and the gradient to the entries of both matrices."""

    name, share = "pencil", 0.1

    def __init__(self, most: int = 150, large: float = 0.03) -> None:
        self.most, self.large = most, large

    def draw(self, rng: Rng) -> Iterator[Case]:
        """Yield one pencil; a few are so large that sparse factors solve them."""
        n = int(rng.integers(620, 700)) if rng.random() < self.large else families.size(rng, 4, self.most)
        family, edges = families.draw(rng, n)
        matrix = reference(edges, "unnormalized").matrix
        active = np.abs(matrix).sum(1) > 0
        if not 1 < active.sum() <= 1000:
            return
        stiffness = matrix[np.ix_(active, active)] / np.abs(matrix).max()
        n, is_even = len(stiffness), bool(rng.random() < 0.5)
        if rng.random() < 0.4:
            stiffness = stiffness + np.diag(np.full(n, rng.random()) if is_even else rng.random(n))
        beside = (stiffness != 0) * (np.ones((n, n)) if is_even else rng.random((n, n)))
        beside = np.triu(beside, 1) + np.triu(beside, 1).T
        root = 10 ** (np.zeros(n) if is_even else rng.uniform(-1, 1, n) * rng.random())
        mass = root[:, None] * (beside + np.diag(beside.sum(1) + 0.5)) * root
        mass = torch.from_numpy(mass * 10 ** rng.uniform(-6, 6))
        case: Case = {"family": family, "stiffness": torch.from_numpy(stiffness), "mass": mass}
        case |= {"k": int(rng.integers(1, min(MOST_PAIRS, n) + 1)), "layout": str(rng.choice(LAYOUTS))}
        yield case | {"seed": int(rng.integers(2**31))}

    def check(self, case: Case) -> Outcome:
        findings, counts, pairs = list[Finding](), {}, None
        given = [case[name].clone().requires_grad_() for name in ("stiffness", "mass")]
        values = scipy.linalg.eigh(case["stiffness"].numpy(), case["mass"].numpy())[0]
        scale = float(np.abs(values[: case["k"] + 1]).max()) or 1.0
        with watched(findings) as caught:
            pairs = eigenpairs(laid_out(given[0], case), case["k"], mass=laid_out(given[1], case))
            gradients = torch.autograd.grad(loss(case, pairs, scale), given)
        is_warned = may_be_off(caught)
        if not findings and pairs is not None:
            findings += judged_values(case, pairs, values)
            if not bool(pairs.converged) and not is_warned:
                findings.append(Finding("unconverged without a warning", str(pairs.solver)))
            gap = values[case["k"]] - values[case["k"] - 1] if case["k"] < len(values) else np.inf
            if gap <= CLEAR * scale or is_warned:
                counts = {"(gradient not judged)": 1}
            else:
                findings += judged_gradient(case, scale, gap, gradients)
        unconverged = pairs is not None and not bool(pairs.converged)
        group = f"default {case['layout']}"
        return Outcome(group, case["family"], findings, unconverged, counts=counts)


def laid_out(matrix: Tensor, case: Case) -> Tensor:
    return matrix.to_sparse_coo() if case["layout"] == "coo" else matrix


def judged_values(case: Case, pairs: Eigenpairs, values: Floats) -> list[Finding]:
    """Return a finding where values are off by more than 1e-9 of the gap, and of what LAPACK's round-off explains."""
    k = case["k"]
    found = pairs.values.detach().numpy()
    gap = values[k] - values[k - 1] if k < len(values) else 0.0
    off, round_off = np.abs(found - values[:k]).max(), 1e-15 * len(values) * np.abs(values).max()
    if bool(pairs.converged) and off > 1e-9 * gap + 10 * round_off:
        return [Finding("wrong value", f"off by {off:.1e}, gap {gap:.1e}, round-off {round_off:.1e}")]
    return []


def weights(case: Case) -> Floats:
    """Return two random vectors ``(N, 2)``."""
    rng = np.random.default_rng(case["seed"])
    found: Floats = rng.standard_normal((len(case["mass"]), 2)) / float(case["mass"].diagonal().mean()) ** -0.5
    return found


def loss(case: Case, pairs: Eigenpairs, scale: float) -> Tensor:
    """Return aᵀ U exp(−Λ / scale) Uᵀ b, the same in any basis of an eigenspace."""
    a, b = (torch.from_numpy(weights(case)).mT @ pairs.vectors).unbind(0)
    found: Tensor = a @ torch.matrix_exp(-pairs.projected / scale) @ b
    return found


def judged_gradient(case: Case, scale: float, gap: float, gradients: tuple[Tensor, ...]) -> list[Finding]:
    """Compare with a central difference of the dense reference along a random symmetric direction of the entries."""
    rng, k = np.random.default_rng(case["seed"] + 1), case["k"]
    directions = []
    for name in ("stiffness", "mass"):
        change = case[name].numpy() * rng.standard_normal(case[name].shape)
        directions.append((change + change.T) / 2)
    step = STEP * min(1.0, gap / scale)
    ends = {}
    for sign in (-1, 0, 1):
        both = (case[name].numpy() + sign * step * d for name, d in zip(("stiffness", "mass"), directions, strict=True))
        values, u = scipy.linalg.eigh(*both)
        a, b = (weights(case).T @ u[:, :k])[:, :]
        ends[sign] = float((a * np.exp(-values[:k] / scale)) @ b)
    before, after = (ends[0] - ends[-1]) / step, (ends[1] - ends[0]) / step
    slope = float(sum((g * torch.from_numpy(d)).sum() for g, d in zip(gradients, directions, strict=True)))
    size = float(sum((g * torch.from_numpy(d)).norm() for g, d in zip(gradients, directions, strict=True)))
    off, noise = abs(slope - (before + after) / 2), abs(after - before)
    if not np.isfinite(slope) or off > 1e-4 * size + 10 * noise:
        return [Finding("wrong gradient", f"off by {off:.1e} of {size:.1e}, noise {noise:.1e}, gap {gap / scale:.1e}")]
    return []
