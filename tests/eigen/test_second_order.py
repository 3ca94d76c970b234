"""First and second derivatives of functions of matrices, and forward mode, against differences at 50 digits.

An answer may be off by what a change of the matrix by its round-off does: with |f⁽ᵐ⁾| at the ends of the spectrum,
eps (|f⁽ᵐ⁾| + ‖A‖ |f⁽ᵐ⁺¹⁾|) times the directions, times `DIGITS` for the sums.
"""

import functools
import warnings

import mpmath
import pytest
import torch
from torch.autograd import forward_ad

from problems import every
from torch_lapeig import DegeneracyWarning, eigenpairs, eigh

DIGITS = 8
H = mpmath.mpf(2) ** -50
HILBERT = torch.linalg.eigvalsh(1 / (torch.arange(3.0) + torch.arange(3.0)[:, None] + 1).double())
GAPS = [0.0, 1e-14, 1e-12, 1e-9, 1e-6, 1e-3]
SPECTRA = {
    "clustered": lambda g: torch.tensor([1.0, 1 + g, 1 + 2 * g, 1.5]).double(),
    "graded": lambda g: torch.tensor([1e-3, 1e-3 * (1 + g), 0.03, 0.03 + g, 1.0]).double(),
    "decaying": lambda g: HILBERT[[0, 1, 1, 2]] * torch.tensor([1, 1, 1 + g, 1]).double(),
}
# function of torch, the same of mpmath, and its derivative of an order
FUNCTIONS = {
    "exp": (lambda x, p: torch.exp(x), mpmath.exp, lambda x, m: mpmath.exp(x)),
    "log": (lambda x, p: torch.log(x), mpmath.log, lambda x, m: mpmath.ff(-1, m - 1) * x**-m),
    "rsqrt": (lambda x, p: torch.rsqrt(x), lambda x: x**-0.5, lambda x, m: mpmath.ff(-0.5, m) * x ** (-0.5 - m)),
    "power": (lambda x, p: x**p, lambda x: x**0.25, lambda x, m: mpmath.ff(0.25, m) * x ** (0.25 - m)),
}
PAIRS = {
    "eigenpairs": lambda a, k: eigenpairs(a, k),
    "pencil": lambda a, k: eigenpairs(a, k, mass=torch.eye(len(a)).to(a.dtype) + 0 * a),
    "eigh": lambda a, k: eigh(a),
}


def hermitian(size, dtype, seed):
    x = torch.randn(size, size, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return (x + x.mH) / 2


@functools.cache
def problem(spectrum, gap, dtype):
    """Return a matrix and two directions, and eigenpairs at 50 digits of the matrix moved along both."""
    values = SPECTRA[spectrum](gap)
    n, wide = len(values), torch.promote_types(dtype, torch.float64)
    q = torch.linalg.qr(hermitian(n, wide, 1)).Q
    a = ((q * values) @ q.mH).to(dtype)
    a, c, d = (a + a.mH) / 2, hermitian(n, dtype, 2), hermitian(n, dtype, 3)
    with mpmath.workdps(50):
        exact = [mpmath.matrix(x.tolist()) for x in (a, c, d)]
        solve = mpmath.eighe if dtype.is_complex else mpmath.eigsy
        steps = [(1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)]
        pairs = {s: solve(exact[0] + s[0] * H * exact[1] + s[1] * H * exact[2]) for s in steps}
    return a, c, d, pairs


def reference(pairs, f, order):
    """Return the derivative of f(A) along the directions by central differences."""

    def at(*step):
        values, vectors = pairs[step]
        return vectors * mpmath.diag([f(x) for x in values]) * vectors.transpose_conj()

    with mpmath.workdps(50):
        if order == 1:
            found = (at(1, 0) - at(-1, 0)) / (2 * H)
        else:
            found = (at(1, 1) - at(-1, 1) - at(1, -1) + at(-1, -1)) / (4 * H * H)
        return torch.tensor([[complex(x) for x in row] for row in found.tolist()], dtype=torch.complex128)


def gradient(function, a, c, d):
    a = a.clone().requires_grad_()
    return torch.autograd.grad((function(a) * c.conj()).real.sum(), a)[0]


def hessian(function, a, c, d):
    a = a.clone().requires_grad_()
    (first,) = torch.autograd.grad((function(a) * c.conj()).real.sum(), a, create_graph=True)
    return torch.autograd.grad((first * d.conj()).real.sum(), a)[0]


def tangent(function, a, c, d):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(a, c))).tangent


WAYS = {"first": (1, gradient), "second": (2, hessian), "forward": (1, tangent)}


@every(spectrum=[*SPECTRA], gap=GAPS, dtype=[torch.float64, torch.float32, torch.complex128, torch.complex64])
def test_derivatives_are_as_accurate_as_the_matrix(spectrum, gap, dtype):
    a, c, d, pairs = problem(spectrum, gap, dtype)
    values = pairs[1, 0][0]
    exponent = torch.tensor(0.25, dtype=a.real.dtype, requires_grad=True)
    for name, (f, exact, derivative) in FUNCTIONS.items():
        expected = [reference(pairs, exact, order) for order in (1, 2)]
        for way, (order, differentiate) in WAYS.items():
            found = differentiate(lambda x, f=f: eigh(x).matrix_function(lambda at: f(at, exponent)), a, c, d)
            size = [max(abs(derivative(x, m)) for x in (min(values), max(values))) for m in (order, order + 1)]
            allowed = DIGITS * torch.finfo(dtype).eps * float(size[0] + max(values) * size[1])
            allowed = allowed * float(c.norm() * d.norm() ** (order - 1))
            error = (found.detach() - expected[order - 1]).abs().max().item()
            assert error <= allowed, (name, way, error, allowed)


@every(spectrum=[*SPECTRA], kind=[*PAIRS], dtype=[torch.float64, torch.float32, torch.complex128])
@pytest.mark.parametrize("gap", [*GAPS, 1e-11, 1e-8])
def test_second_derivatives_of_values_projectors_and_their_products(spectrum, kind, gap, dtype):
    """Up to √eps of the largest value the quotient of cotangents is their derivative; above it has the error eps/Δ."""
    # Vectors in float32 leave an error of eps/Δ² in a product.
    is_real_form = kind != "eigh" and dtype.is_complex
    if is_real_form and gap == 1e-6:  # accurate, but reported as if it were not
        warnings.simplefilter("ignore", DegeneracyWarning)
    a, c, d, pairs = problem(spectrum, gap, dtype)
    aim = hermitian(len(a), dtype, 4)

    def losses(x, k):
        found = PAIRS[kind](x, k)
        total = (-found.values[:k]).exp().sum()
        v = found.vectors[:, :k]
        share = (aim.conj() * (v @ v.mH)).real.sum()
        return total, total * share, share

    def exact(step, k):
        values, vectors = pairs[step]
        some = sorted(range(len(a)), key=lambda i: values[i])[:k]
        v = mpmath.matrix([[vectors[i, j] for j in some] for i in range(len(a))])
        projector, target = v * v.transpose_conj(), mpmath.matrix(aim.tolist())
        share = mpmath.re(sum(target[i, j].conjugate() * projector[i, j] for i in range(len(a)) for j in range(len(a))))
        total = sum(mpmath.exp(-values[i]) for i in some)
        return total, total * share, share

    one = torch.eye(len(a)).to(dtype)
    for k in (len(a) - 1, len(a)):  # all vectors have the projector 1, whose derivatives are 0
        with mpmath.workdps(50):
            ends = [exact(step, k) for step in ((1, 1), (-1, 1), (1, -1), (-1, -1))]
        for i in range(1 if dtype == torch.float32 else 3):
            with mpmath.workdps(50):
                expected = float((ends[0][i] - ends[1][i] - ends[2][i] + ends[3][i]) / (4 * H * H))
            found = (hessian(lambda x, i=i, k=k: losses(x, k)[i] * one, a, one / len(a), c) * d.conj()).real.sum()
            size = float(c.norm() * d.norm()) * (10 if i else 1)
            # The error eps/Δ is largest of graded values. Pairs of the real form of a Hermitian matrix lose a digit.
            share = (3e-7 if spectrum == "graded" else 1e-7) * (10 if is_real_form else 1)
            assert abs(float(found) - expected) <= (3e-3 if dtype == torch.float32 else share) * size
