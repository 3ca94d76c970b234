"""A short form of `tests.campaign`; its checks find the faults that they are for."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from problems import MissesOneCopy
from tests.campaign import clouds, edges, families, outcomes, reference, solves
from tests.campaign.__main__ import main
from tests.campaign.directed import Directed
from tests.campaign.functions import Function
from tests.campaign.gradients import Gradient
from tests.campaign.layers import Layer
from tests.campaign.meshes import Mesh
from tests.campaign.outcomes import Case, Probe
from tests.campaign.pencils import PencilProbe
from tests.campaign.products import Products
from tests.campaign.solves import Solve

seeds = st.integers(0, 2**32 - 1)
names = st.sampled_from(sorted(families.FAMILIES))


def few(count: int) -> settings:
    """Always the same examples. A seed has no simpler one: nothing is shrunk."""
    options = {"derandomize": True, "deadline": None, "database": None, "phases": (Phase.explicit, Phase.generate)}
    suppressed = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=count, suppress_health_check=suppressed, **options)


def faults(probe: Probe, cases: Iterator[Case]) -> list[tuple[str, object]]:
    """Return what a probe finds wrong with the answers of the default solver."""
    outcomes = [probe.check(case) for case in cases if case.get("solver", "default") == "default"]
    return [(outcome.family, outcome.findings) for outcome in outcomes if outcome.findings]


# Probes, examples, and numbers of nodes of graphs of the families; of none where a probe draws its own problems.
PROBES = {
    "eigenpairs": (Solve(), 25, st.integers(2, 120)),
    "eigenpairs beyond dense solves": (Solve(), 6, st.just(450)),
    "gradients": (Gradient(), 20, st.integers(3, 80)),
    "signed and directed": (Directed(), 25, st.integers(2, 80)),
    "adversarial points": (Layer(most=100), 12, st.none()),
    "meshes": (Mesh(), 8, st.none()),
    "pencils": (PencilProbe(most=60, large=0.0), 10, st.none()),
    "products": (Products(most=60), 8, st.none()),
}


@pytest.mark.parametrize(("probe", "count", "sizes"), PROBES.values(), ids=PROBES)
def test_probes_find_no_fault(probe: Probe, count: int, sizes: st.SearchStrategy[int | None]) -> None:
    @few(count)
    @given(names, seeds, sizes)
    def check(name: str, seed: int, n: int | None) -> None:
        rng = np.random.default_rng(seed)
        cases = probe.draw(rng) if n is None else probe.cases(rng, *families.draw(rng, n, name))
        assert faults(probe, cases) == []

    check()


def solve_case(graph: edges.Edges, k: int, **changes: object) -> Case:
    fixed = {"family": "cycle", "graphs": [graph], "k": k, "normalization": "symmetric", "solver": "default"}
    return {**fixed, "dtype": "float64", "dense": False, **changes}


def cycle(n: int) -> edges.Edges:
    return families.cycle(np.random.default_rng(0), n)


class TestChecksSee:
    def kinds(self, probe: Probe, case: Case) -> set[str]:
        return {finding.kind for finding in probe.check(case).findings}

    @pytest.mark.parametrize(("k", "kind"), [(3, "wrong value"), (2, "wrong gap")])
    def test_a_missed_copy(self, monkeypatch: pytest.MonkeyPatch, k: int, kind: str) -> None:
        assert self.kinds(Solve(), solve_case(cycle(20), k)) == set()
        monkeypatch.setitem(solves.SOLVERS, "default", MissesOneCopy())
        assert self.kinds(Solve(), solve_case(cycle(20), k)) == {kind}

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_gradient_off_by_half(self, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
        function = {"kind": "heat", "parameter": 1.0, "k": 3, "normalization": "random_walk", "seed": 1}
        case = solve_case(cycle(12), 3, function=function, dtype=dtype)
        assert self.kinds(Gradient(), case) == set()
        right = Function.by_library

        def wrong(self: Function, graph: edges.Edges, s: torch.Tensor, *rest: object) -> torch.Tensor:
            return right(self, graph, 1.5 * s - 0.5 * s.detach(), *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(Function, "by_library", wrong)
        assert self.kinds(Gradient(), case) == {"wrong gradient"}

    def test_a_wrong_gradient_of_a_pencil(self, monkeypatch: pytest.MonkeyPatch) -> None:
        probe = PencilProbe(most=60, large=0.0)
        (case,) = probe.draw(np.random.default_rng(0))
        assert not self.kinds(probe, case)
        right = torch.autograd.grad
        monkeypatch.setattr(torch.autograd, "grad", lambda *args, **more: [1.01 * x for x in right(*args, **more)])
        assert "wrong gradient" in self.kinds(probe, case)


class TestFamilies:
    @pytest.mark.parametrize("n", [2, 30])
    def test_they_are_graphs(self, n: int) -> None:
        for name in families.FAMILIES:
            graph = families.draw(np.random.default_rng(n), n, name)[1]
            assert (graph.pairs[:, 0] <= graph.pairs[:, 1]).all(), name
            assert (graph.weight > 0).all(), name
            assert len(np.unique(graph.pairs, axis=0)) == len(graph.pairs), name
            assert graph.pairs.max() < graph.nodes, name
            again = families.draw(np.random.default_rng(n), n, name)[1]
            assert (graph.weight == again.weight).all(), name

    def test_symmetric_points_have_multiple_eigenvalues(self) -> None:
        graph = clouds.heat_graph(np.random.default_rng(0), clouds.CLOUDS["circle"](np.random.default_rng(0), 30))
        assert reference.splitting(reference.reference(graph, "symmetric").values, 10) == [2, 4, 6, 8, 10]


def test_a_failure_is_judged_again_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case, probe = solve_case(cycle(20), 3), Solve()
    with monkeypatch.context() as patch:
        patch.setitem(solves.SOLVERS, "default", MissesOneCopy())
        path = outcomes.save(tmp_path, "solve", case, probe.check(case))
        assert outcomes.load(path)[2][0].kind == "wrong value"
        assert main(["--replay", str(path)]) == 1
    assert main(["--replay", str(tmp_path)]) == 0
    assert "0 of 1 still fail" in capsys.readouterr().out
