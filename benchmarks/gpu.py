"""All that is to be known of a GPU, in one command of at most eight minutes.

    python -m benchmarks.gpu [--out FILE] [--device cuda|cpu|pretended] [--quick] [--parts layer large ...]

Each part runs in a process of its own with its own time limit and appends its results to a file of JSON lines, so that
a crash, an illegal access or a hang of one part loses nothing of the others. A table of all results comes last. It
needs torch, NumPy and SciPy only (pytest for the part ``tests``), and compiles the loops first where they are missing.
``--device cpu`` and ``--device pretended``, with ``--quick``, rehearse the command where there is no GPU.

Goals on one H100 or H200: 50,000 × 784 → 10-D ≤ 0.054 s with residuals ≤ 1e-4, 10⁶ × 50 → 10-D ≤ 4 s, layer
32 × 256 × 16 forward and backward ≥ 10 times as fast as `eigh`.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import scipy
import torch
from torch import Tensor

import torch_lapeig as tl

GIB = 2**30
ROOT = Path(__file__).parent.parent
TESTED = ("tests/eigen", "tests/graph", "tests/methods", "tests/test_loss.py", "tests/test_devices.py")
Answers = Callable[[str], Sequence[Tensor]]
FILTERS = {"filters": tl.eigen.ChebyshevSubspace(), "filters in float32": tl.eigen.ChebyshevSubspace(single=True)}


@dataclass(frozen=True)
class Place:
    """Device, problem sizes, and folder of the results."""

    device: str
    quick: bool
    out: Path
    part: str

    def record(self, name: str, value: Any) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps({"part": self.part, "name": name, "value": value}, ensure_ascii=False) + "\n")

    def attempt(self, name: str, function: Callable[[], Any]) -> None:
        """Append the value of a function, or the error that it raises."""
        try:
            value = function()
        except Exception as error:
            value = f"raised {type(error).__name__}: {str(error)[:200]}"
        self.record(name, value)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], rounds: int = 5) -> float:
        call()  # a warm-up; the median of the others
        times = []
        for _ in range(1 if self.quick else rounds):
            self.wait()
            begin = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def milliseconds(self, call: Callable[[], Any], rounds: int = 5) -> float:
        return round(1e3 * self.seconds(call, rounds), 2)

    def reserved(self, call: Callable[[], Any]) -> float | None:
        """Return the GiB that torch reserves for a call, and holds before it; None where there is no GPU."""
        if self.device != "cuda":
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        call()
        self.wait()
        return round(torch.cuda.max_memory_reserved() / GIB, 2)


def difference(found: Tensor, right: Tensor) -> float:
    """Return ‖found − right‖ / ‖right‖, in float64 on the processor."""
    found, right = found.detach().cpu().double(), right.detach().cpu().double()
    return float((found - right).norm() / right.norm().clamp_min(1e-300))


def surface(*shape: int, dims: int, seed: int = 0) -> Tensor:
    """Return points ``(*shape, dims)`` of a noisy surface, float64."""
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.rand(2, *shape, generator=generator, dtype=torch.float64) * 6
    x = torch.stack([u.cos() * (1 + u / 3), u.sin() * (1 + u / 3), v / 2], -1)
    turn = torch.randn(3, dims, generator=generator, dtype=torch.float64)
    return x @ turn + 0.02 * torch.randn(*shape, dims, generator=generator, dtype=torch.float64)


def image_of_cube(n: int, d: int) -> Tensor:
    """Return a smooth image of ten uniform numbers in d dimensions, with noise; float32."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(n, 10, generator=generator)
    turn = torch.randn(10, d, generator=generator)
    return (hidden @ turn).cos() + 0.05 * torch.randn(n, d, generator=generator)


# --- The parts --------------------------------------------------------------------------------------------------------


def environment(place: Place) -> None:
    """Record versions, the device, its arithmetic and its memory."""
    found = {"python": sys.version.split()[0], **{m.__name__: m.__version__ for m in (torch, numpy, scipy)}}
    place.record("versions", " ".join(f"{name} {version}" for name, version in found.items()))
    place.record("compilers", f"cc {shutil.which('cc')}, nvcc {shutil.which('nvcc')}")
    if place.device != "cuda":
        return
    properties = torch.cuda.get_device_properties(0)
    memory = f"{properties.total_memory / GIB:.0f} GiB"
    place.record("device", f"{properties.name}, {memory}, {properties.multi_processor_count} multiprocessors")
    place.record("cores of the host", os.cpu_count())
    for dtype in (torch.float32, torch.float64):
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        place.record(f"TFLOP/s of {dtype}", round(2 * 8192**3 / place.seconds(partial(torch.mm, a, a)) / 1e12, 1))
    one, other = torch.empty(2, GIB, dtype=torch.uint8, device="cuda")
    place.record("TB/s of a copy", round(2 * GIB / place.seconds(lambda: other.copy_(one)) / 1e12, 2))


def eigh(place: Place) -> None:
    """Time `eigh` of batches on the device and, with the copies, on the host."""
    shapes = ((64, 32), (64, 33), (64, 64), (64, 128), (1, 500), (32, 256), (16, 512))
    for b, n in ((8, 33),) if place.quick else shapes:
        for dtype in (torch.float32, torch.float64):
            a = torch.randn(b, n, n, generator=torch.Generator().manual_seed(0), dtype=dtype)
            there = (a + a.mT).to(place.device)

            def on_host(there: Tensor = there) -> list[Tensor]:
                return [part.to(place.device) for part in torch.linalg.eigh(there.cpu())]

            name = f"{b} × {n}², {dtype}, ms"
            place.attempt(f"{name}, device", partial(place.milliseconds, partial(torch.linalg.eigh, there), 3))
            place.attempt(f"{name}, host", partial(place.milliseconds, on_host, 3))


def library(place: Place) -> None:
    """Compare each part of the library with its answer on the processor."""
    for name, answers, limit in _comparisons():

        def worst(answers: Answers = answers, limit: float = limit) -> str:
            error = max(map(difference, answers(place.device), answers("cpu")))
            return f"{'ok' if error <= limit else 'WRONG'} {error:.1e}"

        place.attempt(name, worst)


def gram(y: Tensor) -> Tensor:
    """Return Y Yᵀ, which signs and rotations leave as it is."""
    return y @ y.mT


def _comparisons() -> Iterator[tuple[str, Answers, float]]:
    """Yield what to compare: a name, a function of the device that returns tensors, and the largest difference."""
    x = surface(600, dims=5)
    sets = {
        "a surface": (x, 8),
        "copies": (torch.cat([x[:50]] * 3), 8),
        "784 dimensions": (image_of_cube(3000, 784), 15),
    }
    for name, (points, k) in sets.items():
        search = partial(lambda points, k, where: [tl.knn_graph(points.to(where), k).to_dense()], points, k)
        yield f"knn_graph of {name}", search, 0.0
    weightings = tl.HeatKernel(), tl.SelfTuning(), tl.DensityCorrected(), tl.ImprovedWeights(), tl.SimpleWeights()
    for weighting in weightings:
        weights = partial(
            lambda of, where: [of.to(where)(x.to(where), tl.knn_graph(x.to(where), 8)).to_dense()], weighting
        )
        yield f"weights of {type(weighting).__name__}", weights, 1e-10
    for name, solver in {"default": None, "Eigh": tl.eigen.Eigh(), "Lobpcg": tl.eigen.Lobpcg(), **FILTERS}.items():
        for dtype, limit in ((torch.float64, 1e-7), (torch.float32, 1e-3)):
            yield f"eigenpairs by {name}, {dtype}", partial(_pairs, x.to(dtype), solver), limit
    yield "layer", partial(_through, tl.LaplacianEigenmaps(3), x, None), 1e-6
    mask = torch.arange(120) < torch.tensor([[120], [90], [60], [33]])
    yield "layer, batch with mask", partial(_through, tl.LaplacianEigenmaps(3), surface(4, 120, dims=5), mask), 1e-6
    for method in (tl.MDS, tl.Isomap, tl.LLE, tl.KernelPCA):
        yield method.__name__, partial(_through, method(2), x[:200], None), 1e-6
    new, maps = surface(30, dims=5, seed=1), tl.LaplacianEigenmaps(2)
    rows = lambda where: [gram(torch.cat(maps.to(where).out_of_sample(x.to(where), new.to(where))))]  # noqa: E731
    yield "out_of_sample", rows, 1e-6
    yield "smoothness", lambda where: [tl.LaplacianSmoothness(tl.KNN(8))(x[:, :2].to(where), x.to(where))], 1e-9
    labels = torch.full((600,), -1)
    labels[:3], labels[-3:] = 0, 1
    for model in (tl.LabelSpreading(), tl.HarmonicFunction()):
        predict = partial(lambda of, where: [of.fit(x.to(where), labels.to(where)).predict()], model)
        yield type(model).__name__, predict, 0.0
    edges = tl.knn_graph(x[:100], 5).edge_index
    encoding = lambda where: [gram(tl.laplacian_positional_encoding(edges.to(where), 100, 4).vectors)]  # noqa: E731
    yield "positional encoding", encoding, 1e-5


def _pairs(x: Tensor, solver: Any, where: str) -> list[Tensor]:
    there = x.to(where)
    pairs = tl.eigenpairs(tl.Laplacian(tl.HeatKernel()(there, tl.knn_graph(there, 8))), 5, solver)
    return [pairs.values, gram(pairs.vectors)]


def _through(module: Any, x: Tensor, mask: Tensor | None, where: str) -> list[Tensor]:
    """Return a module's embedding as a Gram matrix, and a gradient."""
    there = x.to(where).requires_grad_()
    masked = {} if mask is None else {"mask": mask.to(where)}
    products = gram(module.to(where)(there, **masked))
    return [products, *torch.autograd.grad(products.pow(4).sum(), there)]


def by_eigh(x: Tensor, k: int, neighbors: int | None) -> Tensor:
    """Return the same embedding by `cdist`, `topk` and `eigh`, with their own derivatives; None joins all points."""
    lengths = torch.cdist(x, x).square()
    edges = (1 - torch.eye(x.shape[1]).to(x)).expand_as(lengths)
    if neighbors is not None:
        others = torch.where(edges > 0, lengths.detach(), torch.inf)
        edges = torch.zeros_like(lengths).scatter_(2, others.topk(neighbors, largest=False).indices, 1)
        edges = torch.maximum(edges, edges.mT)
    bandwidth = torch.where(edges > 0, lengths, torch.nan).flatten(1).nanmedian(1).values
    weight = edges * (-lengths / bandwidth[:, None, None]).exp()
    scale = weight.sum(-1).rsqrt()
    vectors = torch.linalg.eigh(-scale[:, :, None] * weight * scale[:, None])[1]
    y: Tensor = scale[..., None] * vectors[..., 1 : k + 1]
    return y


def layer(place: Place) -> None:
    """Time forward and backward of batches, against `by_eigh`."""
    for b, n in ((8, 64),) if place.quick else ((1, 64), (64, 32), (64, 64), (1, 500), (32, 256), (16, 512)):
        x = torch.randn(b, n, 16, generator=torch.Generator().manual_seed(0)).to(place.device).requires_grad_()
        module = tl.LaplacianEigenmaps(8, tl.KNN(10), tl.HeatKernel("median"))

        def step(embed: Callable[[Tensor], Tensor], x: Tensor = x) -> Any:
            return torch.autograd.grad(embed(x).square().square().sum(), x)

        place.attempt(f"{b} × {n}, ms", partial(place.milliseconds, partial(step, module)))
        plain = partial(step, partial(by_eigh, k=8, neighbors=10))
        place.attempt(f"{b} × {n} by eigh, ms", partial(place.milliseconds, plain, 3))
        place.attempt(f"{b} × {n}, GiB reserved", partial(place.reserved, partial(step, module)))


def large(place: Place) -> None:
    """Time the phases of an embedding in ten dimensions."""
    for n, d in ((2000, 20),) if place.quick else ((50_000, 784), (1_000_000, 50)):
        x = image_of_cube(n, d).to(place.device)
        place.attempt(f"{n:,} × {d} → 10-D", partial(_phases, place, x))
        module = tl.LaplacianEigenmaps(10, tl.KNN(15), tl.HeatKernel("median"))
        place.attempt(f"{n:,} × {d} → 10-D, GiB reserved", partial(place.reserved, partial(module, x)))


def _phases(place: Place, x: Tensor) -> str:
    """Return the seconds of search, weights and solve, and the residual."""
    kernel, rounds = tl.HeatKernel("median"), 3 if len(x) < 500_000 else 1
    graph = tl.knn_graph(x, 15)
    solve = partial(tl.eigenpairs, tl.Laplacian(kernel(x, graph)), 11, tolerance=1e-4)
    pairs = solve()
    times = [place.seconds(call, rounds) for call in (partial(tl.knn_graph, x, 15), partial(kernel, x, graph), solve)]
    phases = ", ".join(f"{name} {s:.4f} s" for name, s in zip(("search", "weights", "solve"), times, strict=True))
    solver, residual = type(pairs.solver).__name__, float(pairs.residuals.max())
    return f"{phases} by {solver}, all {sum(times):.4f} s, residual {residual:.0e}, converged {bool(pairs.converged)}"


def backward(place: Place) -> None:
    """Time the backward to the weights, over forward, and `transform` of a thousand new points."""
    for n in (1000,) if place.quick else (100_000, 1_000_000):
        x = image_of_cube(n, 8).to(place.device)
        graph = tl.HeatKernel("median")(x, tl.knn_graph(x, 15))
        graph = graph.with_weight(graph.weight.detach().requires_grad_())

        def forward(graph: tl.Graph = graph, solver: Any = None) -> Tensor:
            return tl.eigenpairs(tl.Laplacian(graph), 10, solver).vectors

        def both(graph: tl.Graph = graph, n: int = n, forward: Any = forward) -> Any:
            return torch.autograd.grad(forward()[:, 1:].pow(4).sum() * n, graph.weight)

        for name, solver in {"default": None, **FILTERS}.items():
            solve = partial(forward, solver=solver)
            place.attempt(f"{n:,} nodes, forward by {name}, ms", partial(place.milliseconds, solve, 3))
        place.attempt(f"{n:,} nodes, both, ms", partial(place.milliseconds, both, 3))
        transform = partial(tl.LaplacianEigenmaps(10, tl.KNN(15)).fit(x).transform, x[:1000] + 0.01)
        place.attempt(f"{n:,} points, transform of 1000, ms", partial(place.milliseconds, transform, 3))


def encodings(place: Place) -> None:
    """Time positional encodings of a batch of molecules."""
    count, generator = 50 if place.quick else 1000, torch.Generator().manual_seed(0)
    edges, batch, begin = [], [], 0
    for i, n in enumerate(torch.randint(12, 38, (count,), generator=generator).tolist()):
        number = torch.arange(1, n)
        parent = (number - 1 - torch.randint(0, 3, (n - 1,), generator=generator)).clamp_min(0)
        edges.append(torch.stack([torch.cat([number, parent]), torch.cat([parent, number])]) + begin)
        batch.append(torch.full((n,), i))
        begin += n
    edge_index, item = torch.cat(edges, 1).to(place.device), torch.cat(batch).to(place.device)
    encode = partial(tl.laplacian_positional_encoding, edge_index, item, 8)
    place.attempt(f"{count} molecules, ms", partial(place.milliseconds, encode))


def steps(place: Place) -> None:
    """Count training steps on random clouds, grids and duplicates whose output or gradient is not finite."""
    module, count, bad = tl.LaplacianEigenmaps(4), 20 if place.quick else 300, 0
    for step in range(count):
        generator = torch.Generator().manual_seed(step)
        n = int(torch.randint(6, 60, (1,), generator=generator))
        x = torch.randn(8, n, 3, generator=generator)
        x = x.round() if step % 5 == 0 else x * torch.randn(8, n, 1, generator=generator).exp()
        x = x.to(place.device).requires_grad_()
        y = module(x)
        (gradient,) = torch.autograd.grad(y.abs().sum(), x)
        bad += not bool((y.isfinite().all() & gradient.isfinite().all()).cpu())
    place.record(f"of {count} steps not finite", bad)


def tests(place: Place) -> None:
    """Run the tests that are given the device, of rooms that need no other package."""
    files = [str(ROOT / name) for name in TESTED if (ROOT / name).exists()]
    name = place.device if place.device != "cpu" else "test_units"
    limits = ["-x"] if place.quick else ["--maxfail=60", *(["-n", "8"] if find_spec("xdist") else [])]
    shown = ["-v", "-rfE", "-W", "default", "--tb=line", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *shown, *limits, "-k", name, *files[: 1 if place.quick else None]]
    deterministic = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # what torch asks for under deterministic algorithms
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env={**os.environ, **deterministic}, **pipes) as running:
        assert running.stdout
        line = ""
        for line in running.stdout:  # as it comes, since the part may end at its limit
            if ".py" in line and ("FAILED" in line or "ERROR" in line):
                place.record("", line.strip()[:240])
        place.record("", line.strip()[:240])


# With the seconds that each may take.
PARTS: dict[Callable[[Place], None], int] = {environment: 60, eigh: 30, library: 75, layer: 50, encodings: 20}
PARTS |= {large: 90, backward: 45, steps: 45, tests: 120}
WHOLE = 470  # seconds, for all of them

# --- Running them -----------------------------------------------------------------------------------------------------


def compile_loops() -> str:
    """Compile the loops into the package where they are missing, and say what was done."""
    if any((ROOT / "torch_lapeig").rglob("kernels.so")):
        return "there already"
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, str(ROOT / "hatch_build.py")], capture_output=True, text=True, check=False)
    outcome = "compiled" if done.returncode == 0 else f"not compiled ({done.stderr.strip()[:300]})"
    return f"{outcome} in {time.perf_counter() - begin:.0f} s"


def run_apart(name: str, limit: float, options: argparse.Namespace) -> None:
    """Run one part in a process of its own, and record how it ended."""
    place = Place(options.device, options.quick, options.out, name)
    command = [sys.executable, "-m", "benchmarks.gpu", "--run", name, "--device", place.device, "--out", str(place.out)]
    begin = time.perf_counter()
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *["--quick"] * place.quick], cwd=ROOT, start_new_session=True, **pipes) as running:
        try:
            said = running.communicate(timeout=limit)[1]
            if running.returncode:
                place.record("ended with", f"{running.returncode}: {' | '.join(said.strip().splitlines()[-2:])[:300]}")
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # with the processes that it has started
            place.record("ended with", f"time-out after {limit:.0f} s")
    place.record("seconds", round(time.perf_counter() - begin, 1))


def summary(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        entry = json.loads(line)
        value = entry["value"]
        text = format(value, ".3g") if isinstance(value, float) and abs(value) < 1e-2 else str(value)
        yield f"{entry['part']:12s} {entry['name']:44s} {text}"


def run_here(name: str, place: Place) -> None:
    warnings.simplefilter("ignore")
    with contextlib.ExitStack() as stack:
        if place.device == "pretended":
            from benchmarks import pretended

            stack.enter_context(pretended.device())
        {part.__name__: part for part in PARTS}[name](place)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, each in a process of its own, and print the results."""
    parser = argparse.ArgumentParser("benchmarks.gpu", description=__doc__.splitlines()[0] if __doc__ else None)
    names = [part.__name__ for part in PARTS]
    parser.add_argument("--device", choices=("cuda", "cpu", "pretended"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="with small problems")
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"), metavar="FILE", help="where results are added")
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--run", choices=names, help="one part, in this process")
    options = parser.parse_args(arguments)
    options.out = options.out.absolute()
    if options.run:
        run_here(options.run, Place(options.device, options.quick, options.out, options.run))
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU; rehearse with --device cpu --quick.", file=sys.stderr)
        return 1
    end = time.perf_counter() + WHOLE
    Place(options.device, options.quick, options.out, "environment").record("compiled loops", compile_loops())
    for part, limit in PARTS.items():
        if part.__name__ in options.parts:
            run_apart(part.__name__, max(0.0, min(limit, end - time.perf_counter())), options)
    print(*summary(options.out.read_text().splitlines()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
