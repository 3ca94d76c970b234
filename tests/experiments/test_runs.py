"""Folders of runs: what is finished is used again, what is damaged or of other arguments is refused."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from experiments.__main__ import main
from experiments.runs import Refusal, Run, load_tensors


def square(number):
    return {"square": number**2}


def test_a_run_keeps_finished_parts(tmp_path):
    def fails_at_two(number):
        if number == 2:
            raise InterruptedError
        return square(number)

    cases = [(number,) for number in range(4)]
    with pytest.raises(InterruptedError):
        Run(tmp_path, {"out": tmp_path, "size": 3}).cells("squares", fails_at_two, cases)
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"part": "squa')  # cut short
    again = []

    def counted(number):
        again.append(number)
        return square(number)

    run = Run(tmp_path, {"out": tmp_path, "size": 3, "fresh": False})
    assert run.cells("squares", counted, cases) == {number: square(number) for number in range(4)}
    assert again == [2, 3]
    run.finish({})
    assert Run(tmp_path, {"out": tmp_path, "size": 3}).cells("squares", fails_at_two, cases)[2] == square(2)
    assert "metrics.json" in {path.name for path in tmp_path.iterdir()}


def finished_run(out, count=3):
    Run(out, {"size": 3}).cells("squares", square, [(number,) for number in range(count)])
    return out / "cells.jsonl"


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: b"\x00\xff\n",
        lambda line: line[:20] + b"\n",
        lambda line: b"\n",
        lambda line: b"[1, 2]\n",
        lambda line: b"{}\n",
        lambda line: line.replace(b": 4}", b": 9}"),  # JSON, but not what was computed
    ],
)
def test_damaged_line_of_cells_is_named_with_the_way_out(damage, tmp_path):
    cells = finished_run(tmp_path)
    lines = cells.read_bytes().splitlines(keepends=True)
    cells.write_bytes(b"".join([*lines[:3], damage(lines[3])]))
    says = r"cells\.jsonl is damaged in line 4 \(.+\): delete this line to compute its cell again, or pass --fresh true"
    with pytest.raises(Refusal, match=says):
        Run(tmp_path, {"size": 3})
    with pytest.raises(SystemExit, match=r"^error: .*cells\.jsonl is damaged in line 4"):
        main(["bars", "--out", str(tmp_path)])
    cells.write_bytes(b"".join(lines[:3]))  # the way out
    again = []
    found = Run(tmp_path, {"size": 3}).cells("squares", lambda n: again.append(n) or square(n), [(0,), (1,), (2,)])
    assert again == [2]
    assert found == {number: square(number) for number in range(3)}


@pytest.mark.parametrize("damage", [b"\xff\n", b'{"size": 3\n', b"[]\n"])
def test_damaged_arguments_of_cells_are_refused(damage, tmp_path):
    cells = finished_run(tmp_path)
    cells.write_bytes(b"".join([damage, *cells.read_bytes().splitlines(keepends=True)[1:]]))
    with pytest.raises(Refusal, match=r"cells\.jsonl is damaged in line 1 \(.+\): pass --fresh true to start anew"):
        Run(tmp_path, {"size": 3})
    assert Run(tmp_path, {"size": 3, "fresh": True}).cells("squares", square, [(5,)]) == {5: square(5)}


def test_damaged_tensors_are_named_with_the_way_out(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"x": torch.arange(1000.0)}, path)
    whole = path.read_bytes()
    torch.testing.assert_close(load_tensors(path, "")["x"], torch.arange(1000.0))
    place = whole.index(torch.arange(1000.0).numpy().tobytes())
    for damaged in (whole[:-1], whole[:place], b"", b"x" * 100, whole[:place] + b"\x01" + whole[place + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(Refusal, match=r"x\.pt is damaged \(.+\): delete it"):
            load_tensors(path, "delete it")


def test_cells_may_be_computed_by_several_processes(tmp_path):
    def of(number):
        if number == 3:
            raise Refusal("three is too much")
        return {**square(number), "process": os.getpid(), "threads": torch.get_num_threads()}

    run = Run(tmp_path, {"out": tmp_path})
    results = run.cells("squares", of, [(0,), (1,), (2,)], jobs=2)
    assert [results[number]["square"] for number in range(3)] == [0, 1, 4]
    assert os.getpid() not in {result["process"] for result in results.values()}
    assert all(result["threads"] == 1 for result in results.values())
    with pytest.raises(Refusal, match="three"):
        run.cells("squares", of, [(2,), (3,), (4,)], jobs=2)
    assert Run(tmp_path, {"out": tmp_path}).cells("squares", of, [(2,)], jobs=None)[2] == results[2]


def test_run_of_other_arguments_is_refused_unless_fresh(tmp_path):
    Run(tmp_path, {"out": tmp_path, "seeds": {500: 2}}).cells("squares", square, [(1,)])
    with pytest.raises(Refusal, match=r"seeds\.500 was 2, is 3.*--fresh"):
        Run(tmp_path, {"out": tmp_path, "seeds": {500: 3}})
    Run(tmp_path, {"out": tmp_path, "seeds": {500: 2}, "data_dir": Path("elsewhere")})  # the same work
    again = []
    run = Run(tmp_path, {"out": tmp_path, "seeds": {500: 3}, "fresh": True})
    run.cells("squares", lambda number: {"n": again.append(number)}, [(1,)])
    assert again == [1]


def test_command_line_resumes_and_refuses(tmp_path, capsys):
    arguments = ["bars", "--images", "100", "--seeds", "2", "--seeds_of_others", "1", "--neighbors"]
    main([*arguments, "8", "--out", str(tmp_path)])
    first = json.loads((tmp_path / "metrics.json").read_text())
    main(["bars", "--config", str(tmp_path / "config.yaml")])
    assert re.search(r"(\d+) of \1 cells read", capsys.readouterr().out)
    second = json.loads((tmp_path / "metrics.json").read_text())
    times = {"seconds": 0, "elapsed": 0}
    assert {**first, **times} == {**second, **times}
    with pytest.raises(SystemExit, match="neighbors was 8, is 9"):
        main([*arguments, "9", "--out", str(tmp_path)])
