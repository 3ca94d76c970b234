"""All that is to be known of a GPU, in one command of at most eight minutes.

    python -m benchmarks.gpu [--json FILE] [--compare] [--parts layer embedding ...] [--no-tests]

Runs the device tests, then measures on the CUDA device that is there: embeddings of 50,000 × 784 and 10⁶ × 50 points
phase by phase, with residuals and the agreement of neighbours with the processor's answer; layers against `cdist`,
`topk` and `eigh`; encodings of molecules; backward over forward; `transform`; peak memory; kernels. ``--compare`` adds
cuML where it is installed. Without a GPU it says so, and runs its parts small on the processor.

Goals on one H100 or H200: 50,000 × 784 → 10-D ≤ 0.054 s with residuals ≤ 1e-4, 10⁶ × 50 → 10-D ≤ 4 s, layer
32 × 256 × 16 forward and backward ≥ 10 times as fast as `eigh`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from benchmarks import launches
from benchmarks.record import Record
from experiments.tables import Table
from torch_lapeig import KNN, Graph, HeatKernel, Laplacian, LaplacianEigenmaps, eigenpairs, knn_graph
from torch_lapeig.eigen import Eigenpairs
from torch_lapeig.graph import nearest_neighbors
from torch_lapeig.methods import laplacian_positional_encoding

SECONDS, TEST_SECONDS = 480, 180
MIB = 2**20


class Place(NamedTuple):
    """Where to measure, and with problems of which part of their full size."""

    device: torch.device
    share: float

    @property
    def name(self) -> str:
        """Of the hardware."""
        return torch.cuda.get_device_name(self.device) if self.on_gpu else "no GPU: the processor, small problems"

    @property
    def on_gpu(self) -> bool:
        """Whether there is one."""
        return self.device.type == "cuda"

    def size(self, full: int) -> int:
        """Of a problem."""
        return max(400, int(full * self.share))

    def wait(self) -> None:
        """Until the device has done all."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], Any], rounds: int = 5) -> tuple[float, Any]:
        """In the median, after a warm-up; and what the last call gave."""
        times, result = [], call()
        for _ in range(rounds):
            self.wait()
            begin = time.perf_counter()
            result = call()
            self.wait()
            times.append(time.perf_counter() - begin)
        return statistics.median(times), result

    def peak(self, call: Callable[[], Any]) -> float | None:
        """MiB above what is held before."""
        if not self.on_gpu:
            return None
        self.wait()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        call()
        self.wait()
        return (torch.cuda.max_memory_allocated(self.device) - before) / MIB


def points(n: int, d: int) -> Tensor:
    """A smooth image of ten uniform numbers in d dimensions, with noise; float32."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(n, 10, generator=generator)
    turn = torch.randn(10, d, generator=generator)
    return (hidden @ turn).cos() + 0.05 * torch.randn(n, d, generator=generator)


def agreement(one: Tensor, other: Tensor, k: int = 5, rows: int = 2000) -> float:
    """Share of the k nearest neighbours in one embedding that are among those in the other, of some points."""
    found = [nearest_neighbors(y.double().cpu(), k, y[:rows].double().cpu()).indices for y in (one, other)]
    return float((found[0][:, :, None] == found[1][:, None, :]).any(2).double().mean())


def solved(graph: Graph, k: int) -> Eigenpairs:
    """The pairs of a new Laplacian."""
    return eigenpairs(Laplacian(graph), k)


def embedding(place: Place) -> Iterator[Table]:
    """Search, weights, eigenpairs, all of it; where the processor has the time, whether its answer is the same."""
    columns = {"": "", "search, s": ".4f", "weights": ".4f", "eigenpairs": ".4f", "all": ".4f", "residual": ".1e"}
    table = Table(
        "Embeddings in 10 dimensions, 15 neighbours, float32", {**columns, "5-NN": ".4f", "peak, MiB": ",.0f"}
    )
    for n, d in ((place.size(50_000), 784 if place.on_gpu else 32), (place.size(10**6), 50 if place.on_gpu else 8)):
        host = points(n, d)
        x, module = host.to(place.device), LaplacianEigenmaps(10, KNN(15), HeatKernel("median"))
        search, graph = place.seconds(partial(knn_graph, x, 15), 3)
        weights, weighted = place.seconds(partial(HeatKernel("median"), x, graph), 3)
        solve, pairs = place.seconds(partial(solved, weighted, 11), 3)
        every, y = place.seconds(partial(module, x), 3)
        same = agreement(module(host), y) if n <= 50_000 else None
        peak = place.peak(partial(module, x))
        table.add(f"{n:,} × {d}", search, weights, solve, every, float(pairs.residuals.max()), same, peak)
    yield table


def by_eigh(x: Tensor, k: int, neighbors: int) -> Tensor:
    """The same embedding by `cdist`, `topk` and `eigh`, with their own derivatives."""
    lengths = torch.cdist(x, x).square()
    with torch.no_grad():
        others = lengths + torch.diag_embed(torch.full_like(lengths[..., 0], torch.inf))
        edges = torch.zeros_like(lengths).scatter_(2, others.topk(neighbors, largest=False).indices, 1)
        edges = torch.maximum(edges, edges.mT)
    weight = edges * (-lengths).exp()
    scale = weight.sum(-1).clamp_min(1e-30).rsqrt()
    vectors = torch.linalg.eigh(-scale[:, :, None] * weight * scale[:, None])[1]
    y: Tensor = scale[..., None] * vectors[..., 1 : k + 1]
    return y


def layer(place: Place) -> Iterator[Table]:
    """Forward and backward of batches."""
    columns = {"": "", "ours, ms": ".2f", "eigh, ms": ".2f", "eigh / ours": ".1f", "peak, MiB": ",.0f"}
    table = Table("Layer, forward and backward, k = 8, 10 neighbours, float32", columns)
    for b, n in ((32, 256), (16, 512), (64, 128)) if place.on_gpu else ((4, 64), (2, 96)):
        x = torch.randn(b, n, 16, generator=torch.Generator().manual_seed(0)).to(place.device).requires_grad_()
        module = LaplacianEigenmaps(8, KNN(10), HeatKernel(1.0))

        def ours(x: Tensor = x, module: Any = module) -> Any:
            return torch.autograd.grad(module(x).square().square().sum(), x)

        def theirs(x: Tensor = x) -> Any:
            return torch.autograd.grad(by_eigh(x, 8, 10).square().square().sum(), x)

        (a, _), (e, _) = place.seconds(ours), place.seconds(theirs, 3)
        table.add(f"{b} × {n} × 16", 1e3 * a, 1e3 * e, e / a, place.peak(ours))
    yield table


def encodings(place: Place) -> Iterator[Table]:
    """Of small graphs in one batch."""
    count = 1000 if place.on_gpu else 50
    generator = torch.Generator().manual_seed(0)
    edges, batch, begin = [], [], 0
    for i, n in enumerate(torch.randint(12, 38, (count,), generator=generator).tolist()):
        number = torch.arange(1, n)
        parent = (number - 1 - torch.randint(0, 3, (n - 1,), generator=generator)).clamp_min(0)
        both = torch.stack([torch.cat([number, parent]), torch.cat([parent, number])])
        edges.append(both + begin)
        batch.append(torch.full((n,), i))
        begin += n
    edge_index, item = torch.cat(edges, 1).to(place.device), torch.cat(batch).to(place.device)
    seconds, _ = place.seconds(lambda: laplacian_positional_encoding(edge_index, item, 8))
    table = Table("Positional encodings, k = 8", {"": "", "ms": ".2f", "graphs a second": ",.0f"})
    table.add(f"{count} molecules", 1e3 * seconds, count / seconds)
    yield table


def backward(place: Place) -> Iterator[Table]:
    """Over forward, to the weights, and `transform` of new points."""
    columns = {"": "", "forward, s": ".4f", "backward, s": ".4f", "backward / forward": ".2f", "transform, s": ".4f"}
    table = Table("Eigenpairs of k = 10 and their backward; a thousand new points", columns)
    for n in (place.size(10**5), place.size(10**6)):
        x = points(n, 8).to(place.device)
        graph: Graph = HeatKernel("median")(x, knn_graph(x, 15))
        graph = graph.with_weight(graph.weight.detach().requires_grad_())
        forward, _ = place.seconds(partial(solved, graph, 10), 3)

        def both(graph: Graph = graph, n: int = n) -> Any:
            vectors = eigenpairs(Laplacian(graph), 10).vectors
            return torch.autograd.grad(vectors[:, 1:].pow(4).sum() * n, graph.weight)

        total, _ = place.seconds(both, 3)
        module = LaplacianEigenmaps(10, KNN(15)).fit(x)
        transform, _ = place.seconds(partial(module.transform, x[:1000] + 0.01), 3)
        table.add(f"{n:,} nodes", forward, total - forward, (total - forward) / forward, transform)
    yield table


def kernels(place: Place) -> Iterator[Table]:
    """Launches: counted by the profiler on a GPU, else on the pretended device."""
    table = Table("Launches and waits", {"": "", "launches": ",.0f", "waits": ".1f"})
    if not place.on_gpu:
        for work in launches.counted(quick=True):
            table.add(work.name, work.launches, work.waits)
        yield table
        return
    x, module = torch.randn(32, 256, 16, device=place.device), LaplacianEigenmaps(8, KNN(8))
    module(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        module(x)
        place.wait()
    table.add("layer 32 × 256 × 16, forward", float(sum(event.count for event in profile.key_averages())), None)
    yield table


def compare(place: Place) -> Iterator[Table]:
    """cuML's embedding of the same points, where it is installed."""
    try:
        from cuml.manifold import SpectralEmbedding
    except ImportError:
        return
    table = Table("cuML", {"": "", "cuML, s": ".4f", "ours, s": ".4f"})
    x = points(place.size(50_000), 784).to(place.device)
    theirs, _ = place.seconds(lambda: SpectralEmbedding(n_components=10, n_neighbors=15).fit_transform(x), 3)
    ours, _ = place.seconds(lambda: LaplacianEigenmaps(10, KNN(15))(x), 3)
    table.add(f"{len(x):,} × 784 → 10", theirs, ours)
    yield table


PARTS = {f.__name__: f for f in (embedding, layer, encodings, backward, kernels)}


def device_tests() -> str:
    """The last line of what the device tests say."""
    command = [sys.executable, "-m", "pytest", "-q", "-k", "cuda", "tests"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"device tests: not done after {TEST_SECONDS} s"
    return "device tests: " + (done.stdout.strip().splitlines() or ["nothing said"])[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, print them and keep them."""
    parser = argparse.ArgumentParser("benchmarks.gpu", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the record")
    parser.add_argument("--compare", action="store_true", help="with cuML, where it is installed")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--no-tests", action="store_true", help="without the device tests")
    options = parser.parse_args(arguments)
    on_gpu = torch.cuda.is_available()
    place = Place(torch.device("cuda" if on_gpu else "cpu"), 1.0 if on_gpu else 1e-3)
    record = Record(
        "gpu", "python -m benchmarks.gpu", torch.get_num_threads(), quick=not on_gpu, console=Console(width=140)
    )
    record.show(place.name)
    begin = time.perf_counter()
    if on_gpu and not options.no_tests:
        record.show(device_tests())
    parts = [PARTS[name] for name in options.parts] + ([compare] if options.compare and on_gpu else [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in parts:
            if time.perf_counter() - begin > SECONDS:
                record.show(f"{part.__name__}: left out after {SECONDS} s")
                continue
            try:
                record.show(*part(place))
            except (RuntimeError, MemoryError) as error:
                record.show(f"{part.__name__}: {type(error).__name__}: {error}")
    if options.json is not None:
        record.write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
