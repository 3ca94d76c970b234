"""Graphs whose spectra are known in closed form, point sets to build graphs from, and gauge-invariant functions."""

import contextlib
import io
import itertools
import json
import shutil
import warnings
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import torch
from scipy.sparse import csr_array, dia_array, eye, kron
from torch import Tensor, nn

from benchmarks import pretended
from torch_lapeig import Graph, GraphWarning
from torch_lapeig.eigen import Eigh
from torch_lapeig.graph.search.exact import differentiable_squared_distances

DEVICES = ["cpu", "cuda" if torch.cuda.is_available() else pretended.NAME]  # see benchmarks/pretended.py
DTYPES = [torch.float32, torch.float64]
on_every_device = pytest.mark.parametrize("device", DEVICES)
in_every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])


def touches_border(picture: Path) -> bool:
    """Return whether ink of a PNG reaches its border, where a label or a legend is cut."""
    ink = pytest.importorskip("matplotlib.image").imread(picture)[..., :3].min(-1) < 0.9
    return bool(ink[:2].any() or ink[-2:].any() or ink[:, :2].any() or ink[:, -2:].any())


@contextlib.contextmanager
def chromium(folder: Path, *, reaches: str | None = None) -> Iterator[Any]:
    """Headless Chromium with its files in a folder, which reaches one host at most; tests without it are skipped."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: make test installs it")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium with its driver: packages chromium and chromium-driver of Debian, for instance")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    flags = ["headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=1400,900"]
    hosts = "MAP * ~NOTFOUND" + (f", EXCLUDE {reaches}" if reaches else "")
    for flag in [*flags, "no-proxy-server", f"host-resolver-rules={hosts}", f"user-data-dir={folder}"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=service.Service(driver))
    try:
        browser.set_page_load_timeout(60)
        yield browser
    finally:
        browser.quit()


def wait_for(browser: Any, script: str) -> Any:
    wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait(browser, 60)
    return wait.until(lambda window: window.execute_script(f"return {script}"))


def complaints(browser: Any) -> list[Any]:
    return [entry for entry in browser.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")]


def path(n: int) -> Tensor:
    ones = torch.ones(n - 1, dtype=torch.float64)
    return torch.diag(ones, 1) + torch.diag(ones, -1)


def cycle(n: int) -> Tensor:
    shift = torch.eye(n, dtype=torch.float64).roll(1, 0)
    return shift + shift.T


def torus(a: int, b: int, first: float = 1.0, second: float = 1.0) -> tuple[Tensor, Tensor]:
    """Edges ``(2, E)`` both ways of the product of two cycles, and their weights: ``first`` along the first one."""
    node = torch.arange(a * b).reshape(a, b)
    edges = torch.cat([torch.stack([node.flatten(), node.roll(-1, axis).flatten()]) for axis in (0, 1)], 1)
    weight = torch.tensor([first, second], dtype=torch.float64).repeat_interleave(a * b)
    return torch.cat([edges, edges.flip(0)], 1), weight.repeat(2)


def polygon(n: int) -> Tensor:
    """Corners of a regular polygon, whose eigenvalues come in pairs."""
    angle = 2 * torch.pi * torch.arange(n, dtype=torch.float64) / n
    return torch.stack([angle.cos(), angle.sin()], 1)


def complete(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.float64) - torch.eye(n, dtype=torch.float64)


def complete_bipartite(a: int, b: int) -> Tensor:
    side = (torch.arange(a + b) < a).double()
    return (side[:, None] != side).double()


def two_cliques(a: int, b: int) -> Tensor:
    return torch.block_diag(complete(a), complete(b))


# An affinity matrix with the spectra of its normalised and unnormalised Laplacians.
Spectrum = namedtuple("Spectrum", "name affinity normalized unnormalized")


def known_spectra() -> list[Spectrum]:
    n = 12
    k = np.arange(n)
    return [
        Spectrum("path", path(n), list(1 - np.cos(np.pi * k / (n - 1))), list(2 - 2 * np.cos(np.pi * k / n))),
        Spectrum("cycle", cycle(n), list(1 - np.cos(2 * np.pi * k / n)), list(2 - 2 * np.cos(2 * np.pi * k / n))),
        Spectrum("complete", complete(n), [0] + [n / (n - 1)] * (n - 1), [0] + [n] * (n - 1)),
        Spectrum("star", complete_bipartite(1, n - 1), [0, *[1] * (n - 2), 2], [0, *[1] * (n - 2), n]),
        Spectrum("bipartite", complete_bipartite(4, 7), [0, *[1] * 9, 2], [0, *[4] * 6, *[7] * 3, 11]),
        Spectrum("two cliques", two_cliques(5, 4), [0, 0, *[5 / 4] * 4, *[4 / 3] * 3], [0, 0, *[5] * 4, *[4] * 3]),
    ]


def random_affinity(n: int, *, seed: int = 0, keep: float = 0.6) -> Tensor:
    """A connected random graph with weights in (0.5, 1.5)."""
    generator = torch.Generator().manual_seed(seed)
    weight = 0.5 + torch.rand(n, n, generator=generator, dtype=torch.float64)
    upper = (weight * (torch.rand(n, n, generator=generator) < keep)).triu(1)
    return upper + upper.T + path(n)


def spread_weights(n: int, *, orders: int = 12) -> Tensor:
    """A connected random graph with weights over ``orders`` orders of magnitude."""
    exponent = torch.rand(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).triu(1)
    exponent = exponent + exponent.T
    return random_affinity(n, keep=0.2) * 10 ** (-orders * exponent)


def sparse_path(n: int) -> csr_array:
    return dia_array((np.ones((2, n)), [1, -1]), shape=(n, n)).tocsr()


def grid(*sides: int) -> csr_array:
    found = csr_array((1, 1))
    for side in sides:
        found = kron(found, eye(side)) + kron(eye(found.shape[0]), sparse_path(side))
    return csr_array(found)


def of_networkx(graph: nx.Graph) -> csr_array:
    return csr_array(nx.to_scipy_sparse_array(graph, dtype=float))


def preferential_attachment(n: int, edges: int = 2) -> csr_array:
    """A graph with hubs (Barabási & Albert 1999)."""
    return of_networkx(nx.barabasi_albert_graph(n, edges, seed=0))


def square(n: int) -> tuple[Tensor, Tensor]:
    """The unit square as a mesh: a grid of n × n squares, each of two triangles."""
    node = torch.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    a, b, c, d = (part.flatten() for part in (node[:-1, :-1], node[1:, :-1], node[1:, 1:], node[:-1, 1:]))
    place = torch.cartesian_prod(*2 * [torch.arange(n + 1, dtype=torch.float64) / n])
    return place, torch.cat([torch.stack([a, b, c], 1), torch.stack([a, c, d], 1)])


def points(n: int, d: int, *, seed: int = 0, batch: int | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
    shape = (n, d) if batch is None else (batch, n, d)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def of_cube(n: int, d: int = 3, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def swiss_roll(n: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    u = torch.rand(2, n, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    angle = 1.5 * torch.pi * (1 + 2 * u[0])
    return torch.stack([angle * angle.cos(), 21 * u[1], angle * angle.sin()], 1)


def subspace_angle(a: Tensor, b: Tensor) -> float:
    """Sine of the largest principal angle between the spans of orthonormal columns."""
    return float(torch.linalg.matrix_norm(b - a @ (a.mT @ b), 2).max())


def projector_loss(n: int, *, seed: int = 3) -> Callable[[Tensor], Tensor]:
    """A smooth function of V Vᵀ, so of the eigenspace and not of the basis in it."""
    h = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    h = h + h.T

    def loss(v: Tensor) -> Tensor:
        p = v @ v.mT
        return (p * h).sum() + 0.3 * (p.square() * h).sum()

    return loss


def covering(together: int, /, **values: Iterable[Any]) -> pytest.MarkDecorator:
    """Run a test with few cases in which each ``together`` parameters take each combination of their values."""
    # With 2 each pair of values of two parameters occurs; all combinations would be many more cases. A dict gives its
    # values, with its keys as names of the cases.
    options = named(values)
    every_case = list(itertools.product(*(range(len(option)) for option in options)))
    parts = {case: set(itertools.combinations(enumerate(case), together)) for case in every_case}
    missing, cases, used = set().union(*parts.values()), [], Counter()
    while missing:
        cases.append(max(every_case, key=lambda c: (len(parts[c] & missing), -sum(used[p] for p in enumerate(c)))))
        missing -= parts[cases[-1]]
        used.update(enumerate(cases[-1]))
    return with_cases(values, ([option[i] for option, i in zip(options, case, strict=True)] for case in cases))


def every(**values: Iterable[Any]) -> pytest.MarkDecorator:
    """Run a test with all combinations of the values of its parameters."""
    return with_cases(values, itertools.product(*named(values)))


def named(values: Mapping[str, Iterable[Any]]) -> list[list[tuple[str, Any]]]:
    return [list(v.items()) if isinstance(v, dict) else [(str(one), one) for one in v] for v in values.values()]


def with_cases(values: Iterable[str], cases: Iterable[Sequence[tuple[str, Any]]]) -> pytest.MarkDecorator:
    names, rows = zip(*(zip(*case, strict=True) for case in cases), strict=True)
    return pytest.mark.parametrize(list(values), rows, ids=map("-".join, names))


def surface(n, *, seed=0, dtype=torch.float64):
    """A curved sheet: connected, no two eigenvalues equal, not flat."""
    u = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=dtype) * torch.tensor([6.0, 3.0])
    return torch.stack([u[:, 0], u[:, 1], u[:, 0].sin()], 1).to(dtype)


def distances(y, other=None):
    """By differences, as products leave √ε of equal points."""
    return torch.cdist(y, y if other is None else other, compute_mode="donot_use_mm_for_euclid_dist")


def edge_parameters(affinity):
    """Free weights of the undirected edges, and the map from them to the symmetric weights of the graph."""
    graph = Graph.from_dense(affinity).to_sparse()
    row, col = graph.edge_index
    upper = row < col
    weight = graph.weight[upper].clone().requires_grad_()
    number = torch.zeros_like(row)
    number[upper] = torch.arange(len(weight))
    number[~upper] = number[graph.pattern.reverse.long()][~upper]
    return weight, lambda w: graph.with_weight(w[number])


def heat_of(pairs, time=1.0):
    """The heat kernel: a function of values and vectors that no choice of basis changes, at equal values either."""
    return pairs.vectors @ torch.matrix_exp(-time * pairs.projected) @ pairs.vectors.mT


def check_derivatives(function, *inputs, first=1e-5, second=1e-5, forward=True, fast_mode=False):
    """Check first and second derivatives, and forward mode, against differences at copies of the inputs."""
    given = tuple(x.detach().clone().requires_grad_() for x in inputs)
    assert torch.autograd.gradcheck(function, given, atol=first, check_forward_ad=forward, fast_mode=fast_mode)
    assert torch.autograd.gradgradcheck(function, given, atol=second, fast_mode=fast_mode)


@torch.no_grad()
def five_points(function, x, direction, step=1e-3):
    """Return the derivative along a direction by central differences of the fourth order."""
    at = {i: function(x.detach() + i * step * direction) for i in (-2, -1, 1, 2)}
    return (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * step)


def dense_values(matrix, mass=None):
    """Return all eigenvalues by SciPy's dense solver."""
    return torch.from_numpy(scipy.linalg.eigh(matrix, mass, eigvals_only=True))


def check_pairs(pairs, exact, *, atol, rtol=0.0, gap_atol=None, gap_rtol=0.1):
    """Check that pairs have converged to the first of all values, in their order, with the gap to the next one."""
    k = pairs.values.shape[-1]
    assert pairs.converged.all()
    torch.testing.assert_close(pairs.values.to(exact), exact[..., :k], atol=atol, rtol=rtol)
    gap = (exact[..., k] - exact[..., k - 1]).abs()
    torch.testing.assert_close(pairs.gap.to(exact), gap, atol=atol if gap_atol is None else gap_atol, rtol=gap_rtol)


def check_vectors(pairs, matrix, mass=None, *, atol):
    """Check A U = M U Λ and Uᴴ M U = I."""
    u = pairs.vectors
    weighted = u if mass is None else mass @ u
    ones = torch.eye(u.shape[-1]).to(u).expand_as(pairs.projected)
    torch.testing.assert_close(u.mH @ weighted, ones, atol=atol, rtol=0)
    torch.testing.assert_close(matrix @ u, weighted * pairs.values[..., None, :], atol=atol, rtol=0)


def sheet(n, *, batch=None, seed=0, dtype=torch.float64):
    """Return points of a curved sheet, whose eigenvalues are distinct."""
    u = torch.rand(*(() if batch is None else (batch,)), n, 2, generator=torch.Generator().manual_seed(seed)).double()
    u = u * torch.tensor([3.0, 1.5])
    return torch.stack([u[..., 0], u[..., 1], u[..., 0].sin()], -1).to(dtype)


def check_slope(search, at, direction, *, step, rel):
    """Check the gradient of an experiment's search along a direction."""
    gradient = search.with_gradient(at)[1]
    expected = (search.value(at + step * direction) - search.value(at - step * direction)) / (2 * step)
    assert gradient @ direction == pytest.approx(expected, rel=rel)


def short_form(name, out, *more):
    from experiments.__main__ import main

    main([name, "--quick", "--out", str(out), *more])
    return json.loads((out / "metrics.json").read_text())


def grams(y):
    """Return Y Yᵀ, which signs and rotations within eigenspaces do not change."""
    return y @ y.mT


@contextlib.contextmanager
def ignoring(category=Warning):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category)
        yield


@contextlib.contextmanager
def setting(change, value, back):
    """Change a setting of torch, as by ``torch.set_num_threads``, and put it back afterwards."""
    change(value)
    try:
        yield
    finally:
        change(back)


def quiet(function, *args, **options):
    with ignoring(GraphWarning):
        return function(*args, **options)


def stored(affinity, is_sparse, mask=None):
    """Return the graph of a dense matrix, stored densely or sparsely."""
    graph = Graph.from_dense(affinity, mask)
    return graph.to_sparse() if is_sparse else graph


def saved_and_loaded(value, weights_only=True):
    """Return what `torch.load` reads of a value in a file."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


class MissesOneCopy(Eigh):
    """`Eigh` without the third pair."""

    def __call__(self, *args, **options):
        found = super().__call__(*args, **options)
        keep = [i for i in range(found.values.shape[1]) if i != 2]
        return found._replace(values=found.values[:, keep], vectors=found.vectors[..., keep])


class Gaussian(nn.Module):
    """Gaussian kernel with a parameter, as a user may define one."""

    def __init__(self):
        super().__init__()
        self.log_gamma = nn.Parameter(torch.tensor(-1.0, dtype=torch.float64))

    def forward(self, x, y):
        return (-self.log_gamma.exp() * differentiable_squared_distances(x, y)).exp()
