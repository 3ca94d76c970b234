"""Recording and replaying of repeated work: its control flow with a recorder for the CPU, on CUDA with CUDA's own.

The recorder keeps what torch is asked to do and replays it on the same memory, as a CUDA graph does: what is computed
in Python, or brought to the host, is not part of it.
"""

import copy
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import pretended
from problems import DEVICES, points, swiss_roll
from torch_lapeig import Laplacian, _compiled, _graphs, _threads, _tuning, eigenpairs, knn_graph
from torch_lapeig.eigen import ChebyshevSubspace, Lanczos, Lobpcg, SmoothedAggregation

ON_CUDA = "cuda" in DEVICES
DEVICE = "cuda" if ON_CUDA else "cpu"
LOOKS = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten._linalg_eigh", "aten._linalg_svd")


class Recorder(TorchDispatchMode):
    """Operations with their operands and results."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).startswith(LOOKS):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.done.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        for func, args, kwargs, out in self.done:
            again = func(*args, **kwargs)
            if not func._schema.is_mutable:
                for old, new in zip(flat(out), flat(again), strict=True):
                    old.copy_(new)


def flat(value):
    return [x for x in (value if isinstance(value, tuple | list) else (value,)) if isinstance(x, torch.Tensor)]


@pytest.fixture
def graphs(monkeypatch):
    """Everything that may be recorded is, also on the CPU; numbers of recordings by function."""
    made = []
    record = _graphs.record

    def on_cpu(function, inputs, device):
        places = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)
        function(*places)
        with Recorder() as recorder:
            results = function(*places)
        assert recorder.done
        return lambda *given: _graphs.replayed(recorder.replay, places, results, *given)

    def counted(function, inputs, device):
        replay = (record if ON_CUDA else on_cpu)(function, inputs, device)
        made.append(_graphs._name(function).rpartition(".")[2])
        return replay

    monkeypatch.setattr(_graphs, "record", counted)
    monkeypatch.setattr(_graphs, "failures", {})
    monkeypatch.setattr(_tuning, "graphs_pay", lambda device: True)
    if not ON_CUDA:
        monkeypatch.setattr(_compiled, "library", lambda: None)  # what is recorded here are operations of torch
        monkeypatch.setattr(_graphs, "_stream", lambda device: threading.get_ident())
    return made


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.usefixtures("no_grad")
class TestCaptured:
    def test_the_same_numbers_by_replay(self, graphs):
        calls, weight = [], points(5, 5).to(DEVICE)

        def function(x, y):
            calls.append(x.shape)
            z = x @ weight
            return z.mul_(2), (z + y).amax(0)

        captured = _graphs.captured(function, torch.device(DEVICE))
        results = []
        for seed in range(5):
            x, y = points(4, 5, seed=seed).to(DEVICE), points(4, 5, seed=9 + seed).to(DEVICE)
            results.append((captured(x, y), function(x, y)))
        for found, expected in results:  # results of one replay are not those of the next
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert len(graphs) == 1
        assert len(calls) == 5 + 1 + 2  # as it is, to warm up and to record; then never again

    def test_what_is_written_beside_the_results(self, graphs):
        state = torch.zeros(3, device=DEVICE)

        def function(start):
            state[1:] = state[0] + start
            return state.sum()

        captured = _graphs.captured(function, torch.device(DEVICE))
        for first in range(4):
            state[0] = first
            assert captured(2).item() == 3 * first + 4
        assert len(graphs) == 1

    def test_shapes_constants_and_settings_are_recordings_of_their_own(self, graphs):
        captured = _graphs.captured(lambda x, n: x * n, torch.device(DEVICE))
        x = points(6, 2).to(DEVICE)
        for given in (x, x[:3], x.mT, x.float()):
            for n in (1, 2):
                for _ in range(3):
                    assert torch.equal(captured(given, n), given * n)
        assert len(graphs) == 8
        assert len(captured.replays) == _graphs.MOST
        torch.use_deterministic_algorithms(True)
        try:
            for _ in range(2):
                captured(x.float(), 2)
        finally:
            torch.use_deterministic_algorithms(False)
        assert len(graphs) == 9

    def test_what_cannot_be_recorded_runs_as_it_is(self, graphs):
        def looks(x):
            return x * float(x.sum())

        captured, x = _graphs.captured(looks, torch.device(DEVICE)), points(3, 2).to(DEVICE)
        for _ in range(3):
            assert torch.equal(captured(x), looks(x))
        assert graphs == []
        assert list(_graphs.failures) == [_graphs._name(looks)]
        assert torch.equal(_graphs.captured(looks, torch.device(DEVICE))(x), looks(x))  # nor is it tried again

    def test_errors_of_the_function_are_its_own(self, graphs):
        def fails(x):
            raise ValueError("on purpose")

        captured = _graphs.captured(fails, torch.device(DEVICE))
        for _ in range(3):
            with pytest.raises(ValueError, match="on purpose"):
                captured(points(3, 2).to(DEVICE))

    def test_gradients_and_large_blocks_are_not_recorded(self, graphs, monkeypatch):
        captured, x = _graphs.captured(lambda x: x.exp(), torch.device(DEVICE)), points(3, 2).to(DEVICE)
        with torch.enable_grad():
            for _ in range(3):
                leaf = x.clone().requires_grad_()
                (slope,) = torch.autograd.grad(captured(leaf).sum(), leaf)
                assert torch.equal(slope, x.exp())
        monkeypatch.setattr(_tuning, "GRAPH_BYTES", 8)
        for _ in range(3):
            captured(x)
        assert graphs == []

    def test_one_inside_another_is_part_of_it(self, graphs):
        inner = _graphs.captured(lambda x: x + 1, torch.device(DEVICE))
        outer = _graphs.captured(lambda x: inner(x) * 2, torch.device(DEVICE))
        x = points(3, 2).to(DEVICE)
        for _ in range(6):
            assert torch.equal(outer(x), (x + 1) * 2)
            assert torch.equal(inner(x), x + 1)
        other = _graphs.captured(lambda x: inner(x) * 3, torch.device(DEVICE))
        for _ in range(3):
            assert torch.equal(other(x), (x + 1) * 3)
        assert len(graphs) == 3

    def test_threads(self, graphs):
        captured = _graphs.captured(lambda x: x.cumsum(0) - x, torch.device(DEVICE))
        wrong = []

        def work(seed):
            with torch.no_grad():
                for i in range(20):
                    x = points(50, 2, seed=seed * 100 + i).to(DEVICE)
                    if not torch.equal(captured(x), x.cumsum(0) - x):
                        wrong.append(i)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_copies_record_for_themselves(self, graphs):
        captured, x = _graphs.captured(lambda x: x.exp(), torch.device(DEVICE)), points(3, 2).to(DEVICE)
        for _ in range(3):
            captured(x)
        other = copy.deepcopy(captured)
        assert other.replays == {}
        assert torch.equal(other(x), x.exp())


def test_the_identity_elsewhere():
    def function():
        pass

    assert _graphs.captured(function, torch.device("cpu")) is function


def test_work_that_is_recorded_stays_on_its_thread(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    here = threading.get_ident()
    assert _threads.together([threading.get_ident] * 4) == [here] * 4


@pytest.mark.parametrize(
    ("solver", "recorded"),
    [(Lanczos(basis=12), "_sweep"), (ChebyshevSubspace(), "several"), (Lobpcg(), "inverse"), (Lobpcg(), "_step")],
)
def test_solvers_and_their_backward_give_the_same_numbers(solver, recorded, graphs, monkeypatch):
    """Lanczos takes the path of accelerators, which looks once a sweep; everything else is the same code."""
    if not ON_CUDA:
        from torch_lapeig.eigen.krylov import KrylovSpace

        monkeypatch.setattr(KrylovSpace, "is_ahead", True)
    graph = knn_graph(swiss_roll(900), 8).to(torch.device(DEVICE))

    def answer():
        weight = graph.weight.detach().clone().requires_grad_()
        pairs = eigenpairs(Laplacian(graph.with_weight(weight)), 4, solver)
        loss = pairs.vectors[:, 1:].pow(4).sum() * 100
        return pairs.values.detach(), torch.autograd.grad(loss, weight)[0]

    by_replay = answer()
    assert recorded in graphs
    assert not _graphs.failures
    monkeypatch.setattr(_tuning, "graphs_pay", lambda device: False)
    torch.testing.assert_close(by_replay, answer(), rtol=1e-9, atol=1e-9)


def test_a_cycle_is_recorded_for_few_widths(graphs):
    inverse = SmoothedAggregation()(Laplacian(knn_graph(swiss_roll(900), 8).to(torch.device(DEVICE))).symmetric)
    with torch.no_grad():
        for width in (1, 2, 3, 4, 5, 6, 5, 6, 1):
            for _ in range(2):
                r = points(900, width).to(DEVICE)
                torch.testing.assert_close(inverse(r), inverse.hierarchy.inverse(inverse.scale, r), rtol=0, atol=0)
    assert len(inverse._cycle.replays) == _graphs.MOST


@pytest.mark.parametrize("solver", [Lanczos(basis=12), ChebyshevSubspace(), Lobpcg()])
def test_nothing_that_is_recorded_waits_or_copies_from_the_host(solver, monkeypatch):
    """A graph would read the host's memory again where it was: after that is something else's."""
    names, crossings = set(), []

    def record(function, inputs, device):
        names.add(_graphs._name(function))
        function(*inputs)
        before = seen.waits, seen.sent.total()
        function(*inputs)
        crossings.append((seen.waits - before[0], seen.sent.total() - before[1]))
        return function

    monkeypatch.setattr(_graphs, "record", record)
    monkeypatch.setattr(_graphs, "_stream", lambda device: 0)
    monkeypatch.setattr(_tuning, "graphs_pay", lambda device: True)
    graph = knn_graph(swiss_roll(900), 8)
    with pretended.device() as seen:
        graph = graph.to(torch.device(pretended.NAME, 0))
        weight = graph.weight.detach().requires_grad_()
        pairs = eigenpairs(Laplacian(graph.with_weight(weight)), 4, solver)
        torch.autograd.grad(pairs.vectors[:, 1:].pow(4).sum() * 100, weight)
    assert len(names) >= 2
    assert not _graphs.failures
    assert set(crossings) == {(0, 0)}
