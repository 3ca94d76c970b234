"""The experiments in a short form: what they write, that they resume, their data, scores and manifolds."""

import gzip
import importlib.metadata
import inspect
import json
import math
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from scipy.io import wavfile
from scipy.special import iv

from experiments.__main__ import EXPERIMENTS, experiment, main, spelled_out
from experiments.cut import cuts_of, normalized_cuts, small_graph
from experiments.data import bars, brown_words, digits, frey_faces, mnist_test, part_of_speech, speech_frames
from experiments.demo import neighbour_loss
from experiments.manifolds import mean_angles, radius
from experiments.metrics import mean_and_interval, neighbour_agreement, plus_minus, two_means_accuracy
from experiments.runs import Refusal, Run, load_tensors
from experiments.shapes import LOOP, MANIFOLDS
from torch_lapeig import Radius, normalized_cut


def test_demo_writes_metrics_and_figure(tmp_path, capsys):
    main(["demo", "--quick", "--out", str(tmp_path)])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    before, after = metrics["before"]["10"], metrics["after"]["10"]
    assert before["knn_train"] > 0.95
    assert before["knn_heldout"] > 0.95
    assert before["trustworthiness_heldout"] > 0.9
    assert before["largest_residual"] < 1e-5
    assert before["eigenvalues"] == sorted(before["eigenvalues"])
    assert before["eigengap"] > 0
    assert after["knn_heldout"] >= before["knn_heldout"] - 0.02
    assert metrics["learning"]["loss_last_20"] < metrics["learning"]["loss_first_20"]
    assert metrics["learning"]["bandwidth_over_median"] != 1
    assert (tmp_path / "embedding.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "5-NN accuracy, held out" in printed
    assert "eigenvalue 10" in printed


def test_digits_are_split_by_class():
    split = digits()
    assert len(split.train) + len(split.heldout) == 1797
    assert split.train.shape[1] == 64
    counts = torch.bincount(split.heldout_labels)
    assert counts.min() >= 34


def test_neighbour_loss_is_its_formula():
    """Four points on a line in two classes: p_ij by hand from Goldberger et al. 2004, equation 1."""
    y, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 1])
    end = 1 / (1 + math.exp(-8) + math.exp(-15))  # exp(−1) among exp(−1), exp(−9), exp(−16)
    inner = 1 / (1 + math.exp(-3) + math.exp(-8))  # exp(−1) among exp(−1), exp(−4), exp(−9)
    expected = -(math.log(end) + math.log(inner)) / 2
    assert neighbour_loss(y, labels).item() == pytest.approx(expected, rel=1e-4)
    assert neighbour_loss(y, torch.zeros(4)).item() == pytest.approx(0, abs=1e-6)


NAMES = list(EXPERIMENTS)
DATA = Path(os.environ.get("TORCH_LAPEIG_DATA", "data"))


def needs(*files):
    missing = [file for file in files if not (DATA / file).exists()]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not in TORCH_LAPEIG_DATA")


MNIST = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")


@pytest.mark.parametrize("name", NAMES)
def test_configuration_gives_the_defaults(name, capsys):
    printed = []
    for arguments in ([name, "--print_config"], [name, "--config", f"configs/{name}.yaml", "--print_config"]):
        with pytest.raises(SystemExit):
            main(arguments)
        printed.append(yaml.safe_load(capsys.readouterr().out))
    assert printed[0] == printed[1]
    assert printed[0]["out"] == f"runs/{name}"


@pytest.mark.parametrize("name", NAMES)
def test_help_explains_every_argument(name, capsys):
    pytest.importorskip("docstring_parser")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    for argument in inspect.signature(experiment(name)).parameters:
        described = re.search(rf"^ +{argument}: (.*)$", experiment(name).__doc__, re.MULTILINE)
        assert described, argument
        text = "--trainer.max_epochs" if argument == "trainer" else " ".join(described[1].split())
        assert text in help_text


def test_list_names_every_experiment(capsys):
    main(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all(len(line.split()) > 4 for line in lines)


def test_options_are_spelled_out():
    arguments = ["cut", "--data-dir", "a-b", "--quick", "--trainer.max-epochs=-1", "--seeds", "-1", "--fresh"]
    expected = ["cut", "--data_dir", "a-b", "--quick=true", "--trainer.max_epochs=-1", "--seeds", "-1", "--fresh=true"]
    assert spelled_out(arguments) == expected
    assert spelled_out(["bars", "--quick", "--out"]) == ["bars", "--quick=true", "--out"]  # a value is missing
    assert spelled_out(["bars", "--print_config"]) == ["bars", "--print_config"]
    assert spelled_out(["bars", "--help"]) == ["bars", "--help"]


def quick(name, out, *more):
    """Metrics of the quick form, after a check of what every run leaves."""
    main([name, "--quick", "--device", "cpu", "--out", str(out), *more])
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["config"]["quick"] is True
    assert metrics["versions"]["torch"] == importlib.metadata.version("torch")
    assert yaml.safe_load((out / "config.yaml").read_text())["out"] == str(out)
    figures = sorted(path.stem for path in out.glob("*.png"))
    assert figures
    assert figures == sorted(path.stem for path in out.glob("*.pdf"))
    return metrics


def test_bars_fall_apart_under_eigenmaps_only(tmp_path):
    metrics = quick("bars", tmp_path)
    assert metrics["laplacian_eigenmaps"]["mean"] >= 0.99
    assert metrics["pca"]["mean"] < 0.7


@needs("brown.zip")
def test_words_gather_by_part_of_speech(tmp_path):
    metrics = quick("words", tmp_path)
    eigenmaps, pca = metrics["counts"]["laplacian_eigenmaps"]["2-D"], metrics["counts"]["pca"]["2-D"]
    assert eigenmaps["share"] > pca["share"] > metrics["chance"]


@needs("speech/sentence.wav", "speech/sentence.phn")
def test_speech_gathers_by_class_of_phone(tmp_path):
    metrics = quick("speech", tmp_path)
    assert metrics["laplacian_eigenmaps"]["2-D"]["accuracy"] > metrics["pca"]["2-D"]["accuracy"]
    assert metrics["frames"] == sum(metrics["frames_of_class"].values())


def test_improved_eigenmaps_are_closer_to_the_eigenfunctions(tmp_path):
    metrics = quick("manifolds", tmp_path)
    for name in ("circle", "square", "sphere"):
        angles = metrics["tilted"][name]["N=500"]
        assert angles["improved"]["mean"] <= angles["weighted"]["mean"] / 2
        angles = metrics["uniform"][name]["N=500"]
        assert angles["improved"]["mean"] < angles["weighted"]["mean"]


@needs("frey_rawface.mat")
def test_faces_keep_neighbours(tmp_path):
    metrics = quick("faces", tmp_path)
    assert metrics["trustworthiness"]["improved"]["2-D"] > metrics["trustworthiness"]["pca"]["2-D"]


def test_second_eigenvector_cuts_nearly_as_well_as_any(tmp_path):
    metrics = quick("cut", tmp_path)
    for ratios in metrics["small_graphs"].values():
        assert ratios["eigenvalue_over_optimum"] <= 1
        assert 1 - 1e-9 <= ratios["sweep_mean"] <= ratios["sign_mean"]
        assert ratios["sweep_mean"] < 1.1
    digits_scores = metrics["clusterings"]["digits"]
    assert digits_scores["njw"]["nmi"] > digits_scores["scikit_learn"]["nmi"] - 0.02


# Runs


class Interrupted(Exception):
    pass


def square(number):
    return {"square": number**2}


def test_run_goes_on_with_what_is_finished(tmp_path):
    def fails_at_two(number):
        if number == 2:
            raise Interrupted
        return square(number)

    cases = [(number,) for number in range(4)]
    with pytest.raises(Interrupted):
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


def zeros_for_nines(line):
    return line.replace(b": 4}", b": 9}")


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: b"\x00\xff\n",
        lambda line: line[:20] + b"\n",
        lambda line: b"\n",
        lambda line: b"[1, 2]\n",
        lambda line: b"{}\n",
        zeros_for_nines,  # JSON, but not what was computed
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
    lines = cells.read_bytes().splitlines(keepends=True)
    cells.write_bytes(b"".join([damage, *lines[1:]]))
    with pytest.raises(Refusal, match=r"cells\.jsonl is damaged in line 1 \(.+\): pass --fresh true to start anew"):
        Run(tmp_path, {"size": 3})
    assert Run(tmp_path, {"size": 3, "fresh": True}).cells("squares", square, [(5,)]) == {5: square(5)}


def test_cells_without_their_arguments_are_not_used(tmp_path):
    cells = finished_run(tmp_path)
    cells.write_bytes(b"".join([b"{}\n", *cells.read_bytes().splitlines(keepends=True)[1:]]))
    again = []
    Run(tmp_path, {"size": 3}).cells("squares", lambda n: again.append(n) or square(n), [(0,), (1,)])
    assert again == [0, 1]


@pytest.mark.parametrize("kept", range(8))
def test_file_of_cells_may_be_cut_anywhere_by_a_kill(kept, tmp_path):
    """What is left of it is used as far as lines are whole, and the run ends like any other."""
    cells = finished_run(tmp_path)
    whole = cells.read_bytes()
    cells.write_bytes(whole[: kept * len(whole) // 8])
    cases = [(number,) for number in range(3)]
    for _ in range(2):
        assert Run(tmp_path, {"size": 3}).cells("squares", square, cases) == {n: square(n) for n in range(3)}
    lines = [json.loads(line) for line in cells.read_text().splitlines()[1:]]
    assert [line["case"] for line in lines] == [[0], [1], [2]]


def test_interrupted_rewriting_keeps_the_finished_cells(tmp_path, monkeypatch):
    cells = finished_run(tmp_path)
    whole = cells.read_bytes()
    cells.write_bytes(whole + b'{"part": "squ')

    def interrupted(self, target):
        raise Interrupted

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(Interrupted):
        Run(tmp_path, {"size": 3})
    monkeypatch.undo()
    assert cells.read_bytes().startswith(whole)


def test_cell_is_finished_if_its_files_are_there(tmp_path):
    again = []

    def keeping(run):
        def compute(number):
            again.append(number)
            (run.folder("squares", number) / "square.txt").write_text(str(number**2))
            return square(number)

        return compute

    for computed in ([0, 1], [], [1]):
        again.clear()
        run = Run(tmp_path, {"size": 3})
        run.cells("squares", keeping(run), [(0,), (1,)], keeps=["square.txt"])
        assert again == computed
        if not computed:
            (tmp_path / "cells" / "squares" / "1" / "square.txt").unlink()


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


def test_arguments_may_change_while_nothing_is_finished(tmp_path):
    run = Run(tmp_path, {"out": tmp_path, "device": "gpu"})
    (run.folder("training", 1) / "logs").touch()
    run = Run(tmp_path, {"out": tmp_path, "device": "cpu"})
    assert not (tmp_path / "cells").exists()
    begun = run.folder("training", 1) / "last.ckpt"
    begun.touch()
    with pytest.raises(Refusal, match="device was 'cpu', is 'cuda'"):
        Run(tmp_path, {"out": tmp_path, "device": "cuda"})
    run = Run(tmp_path, {"out": tmp_path, "device": "cpu"})
    assert begun.exists()
    run.cells("training", square, [(1,)])
    assert begun.parent.exists()
    assert not begun.exists()  # the cell is finished
    with pytest.raises(Refusal, match="must be a folder"):
        Run(tmp_path / "cells.jsonl", {"out": tmp_path})


def test_refusal_names_the_members_that_differ(tmp_path):
    run = Run(tmp_path, {"trainer": {"max_epochs": 3, "precision": None}, "seeds": {}})
    run.cells("squares", square, [(1,)])
    with pytest.raises(Refusal, match=r"with: trainer\.max_epochs was 3, is 4\. Use"):
        Run(tmp_path, {"trainer": {"max_epochs": 4, "precision": None}, "seeds": {}})


def test_interruption_is_a_message(monkeypatch):
    def interrupted(**options):
        raise KeyboardInterrupt

    interrupted.__doc__ = "Interrupted."
    monkeypatch.setattr("experiments.__main__.experiment", lambda name: interrupted)
    with pytest.raises(SystemExit, match="interrupted; the same command goes on"):
        main(["bars"])


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
    arguments = ["bars", "--images", "100", "--seeds", "2", "--neighbors", "8", "--out", str(tmp_path)]
    main(arguments)
    first = json.loads((tmp_path / "metrics.json").read_text())
    main(["bars", "--config", str(tmp_path / "config.yaml")])
    assert "2 of 2 cells read" in capsys.readouterr().out
    second = json.loads((tmp_path / "metrics.json").read_text())
    times = {"seconds": 0, "elapsed": 0}
    assert {**first, **times} == {**second, **times}
    with pytest.raises(SystemExit, match="neighbors was 8, is 9"):
        main([*arguments[:-4], "--neighbors", "9", "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "more", "what"),
    [
        ("words", [], r"brown\.zip is missing: the Brown corpus .*nltk.*--data_dir.*TORCH_LAPEIG_DATA"),
        ("faces", [], r"frey_rawface\.mat is missing: the Frey faces .*https"),
        ("speech", ["--sentence", "speech/other"], r"other\.wav is missing: .*TIMIT"),
        ("cut", ["--data", "[mnist]"], r"t10k-images.* is missing: the MNIST test set"),
    ],
)
def test_missing_data_is_named_with_its_source(name, more, what, tmp_path):
    with pytest.raises(SystemExit, match=what):
        main([name, "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"), *more])


@pytest.mark.parametrize(("device", "says"), [("gpu", "must be"), ("cuda", "finds no CUDA")])
def test_unknown_device_is_refused(device, says, tmp_path):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(SystemExit, match=says):
        main(["bars", "--device", device, "--out", str(tmp_path)])


FOREIGN = [
    ["--trainer.profiler.class_path=foreign.Thing"],
    ["--trainer", '{"profiler": {"class_path": "foreign.Thing"}}'],
    ["--trainer.profiler.help=foreign.Thing"],
    ["--trainer.accelerator.class_path", "foreign.Thing"],
    [
        "--trainer.accelerator.class_path",
        "lightning.pytorch.trainer.trainer.os.system",
    ],  # Lightning's name for another's
    {"profiler": {"class_path": "foreign.Thing"}},
    {
        "profiler": {
            "class_path": "lightning.pytorch.profilers.PyTorchProfiler",
            "dict_kwargs": {"a": {"class_path": "foreign.Thing"}},
        }
    },
    {
        "profiler": {
            "class_path": "lightning.pytorch.profilers.PyTorchProfiler",
            "dict_kwargs": {"a": [{"class_path": "foreign.Thing"}]},
        }
    },
]


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A module whose import leaves a file."""
    text = f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\nclass Thing:\n    pass\n"
    (tmp_path / "foreign.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert not (tmp_path / "imported").exists()


def arguments_of(given, tmp_path):
    """Arguments as they are, or flags of the Trainer as a configuration."""
    if isinstance(given, list):
        return given
    (tmp_path / "given.yaml").write_text(yaml.safe_dump({"trainer": given}))
    return ["--config", str(tmp_path / "given.yaml")]


@pytest.mark.parametrize("given", FOREIGN, ids=str)
def test_classes_of_other_modules_are_refused_before_they_are_imported(given, foreign, tmp_path):
    arguments = arguments_of(given, tmp_path)
    with pytest.raises(SystemExit, match="is not imported: a class_path must begin with lightning or experiments"):
        main(["parametric", "--quick", "--out", str(tmp_path / "out"), *arguments])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "given",
    [
        {"callbacks": [{"class_path": "foreign.Thing"}]},
        {"logger": [{"class_path": "foreign.Thing"}]},
        {"logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "a"}}},
        {"plugins": {"class_path": "foreign.Thing"}},
        {"strategy": {"class_path": "foreign.Thing"}},
    ],
    ids=str,
)
def test_callbacks_and_loggers_are_no_arguments(given, foreign, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["parametric", "--quick", "--out", str(tmp_path / "out"), *arguments_of(given, tmp_path)])
    assert re.search(f"does not accept option 'trainer.{next(iter(given))}", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["foreign.Thing", '{"class_path": "foreign.Thing"}', "nothing"])
def test_word_that_names_no_profiler_is_refused(name, foreign, tmp_path):
    with pytest.raises(SystemExit, match=r"does not take --trainer.*: .*can only be one of"):
        main(["parametric", "--quick", "--out", str(tmp_path / "out"), "--trainer.profiler", name])


def test_classes_of_lightning_may_be_named(tmp_path, capsys):
    for name in ("lightning.pytorch.profilers.SimpleProfiler", "SimpleProfiler"):
        with pytest.raises(SystemExit):
            main(["parametric", "--trainer.profiler", name, "--print_config"])
        found = yaml.safe_load(capsys.readouterr().out)["trainer"]["profiler"]["class_path"]
        assert found == "lightning.pytorch.profilers.SimpleProfiler"


@pytest.mark.parametrize("content", [b"\x80\xff\x00", b"seeds: [1\n", b"seeds: {1\x00"])
def test_damaged_configuration_is_named(content, tmp_path):
    (tmp_path / "config.yaml").write_bytes(content)
    for arguments in (["--config", str(tmp_path / "config.yaml")], [f"--config={tmp_path / 'config.yaml'}"]):
        with pytest.raises(SystemExit, match=r"config\.yaml is damaged \(.+\): mend it, or give the arguments"):
            main(["bars", *arguments])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shapes", "[torus]"], "--shapes must be of circle.*got torus"),
        (["--reference", "3"], "--reference must be"),
        (["--jobs", "0", "--seeds", "{500: 1}", "--reference", "500"], "--jobs must be at least 1, got 0"),
        (["--seeds", "{500: 0}", "--reference", "500"], "--seeds must be at least 1"),
    ],
)
def test_unknown_manifolds_are_refused(arguments, says, tmp_path):
    with pytest.raises(SystemExit, match=says):
        main(["manifolds", *arguments, "--out", str(tmp_path)])


# Data


def test_bars_are_bars():
    images, vertical = bars(40, 20, 0, length=8, width=2)
    assert (images.sum((1, 2)) == 16).all()
    rows, columns = images.any(2).sum(1), images.any(1).sum(1)
    assert (rows == np.where(vertical, 8, 2)).all()
    assert (columns == np.where(vertical, 2, 8)).all()
    assert vertical.sum() == 20


def test_neighbours_of_words_are_counted_within_sentences(tmp_path):
    text = "\n\n\tThe/at dog/nn saw/vbd the/at man/nn ./.\n\n\tThe/at man/nn ,/, the/at saw/nn 1/2/cd saw/vbd\n"
    with zipfile.ZipFile(tmp_path / "brown.zip", "w") as archive:
        archive.writestr("brown/ca01", text)
        archive.writestr("brown/README", "the/at the/at the/at")
    found = brown_words(4, tmp_path)
    assert found.words == ["the", "saw", "man", "dog"]  # by frequency, then by name
    assert found.frequency.tolist() == [4, 3, 2, 1]
    assert found.classes == ["determiner", "verb", "noun", "noun"]
    the, saw, man, dog = range(4)
    expected = np.zeros((4, 8))
    for left, right in ((the, dog), (dog, saw), (saw, the), (the, man), (the, man), (the, saw)):
        expected[right, left] += 1
        expected[left, 4 + right] += 1
    np.testing.assert_array_equal(found.counts, expected)


@pytest.mark.parametrize(
    ("tag", "part"),
    [
        ("nn-tl", "noun"),
        ("np$", "noun"),
        ("md*", "modal or auxiliary"),
        ("bedz", "modal or auxiliary"),
        ("vbg", "verb"),
        ("pp$", "determiner"),
        ("ppss", "pronoun"),
        ("wdt", "determiner"),
        ("wps", "pronoun"),
        ("*", "adverb"),
        ("uh", "other"),
        ("fw-in", "preposition"),
        (".", "other"),
    ],
)
def test_parts_of_speech(tag, part):
    assert part_of_speech(tag) == part


def test_speech_is_cut_into_frames(tmp_path):
    """A tone of 1 kHz, then one of 3 kHz: coefficient f · 512 / 16000 is the largest, and phones are by the middle."""
    rate, n = 16000, 3200
    t = np.arange(n) / rate
    tone = np.where(np.arange(n) < n // 2, np.sin(2 * np.pi * 1000 * t), np.sin(2 * np.pi * 3000 * t))
    wavfile.write(tmp_path / "a.wav", rate, (tone * 10000).astype(np.int16))
    (tmp_path / "a.phn").write_text("0 1600 aa\n1600 3200 s\n")
    frames = speech_frames("a", tmp_path)
    assert frames.spectra.shape == (1 + (n - 480) // 80, 256)
    assert frames.spectra[0].argmax() == 32
    assert frames.spectra[-1].argmax() == 96
    assert frames.classes == ["vowel" if i * 80 + 240 < 1600 else "fricative" for i in range(len(frames.start))]
    assert np.ptp(frames.spectra) <= math.log(1e4) + 1e-9


@needs("frey_rawface.mat")
def test_faces_are_faces():
    faces = frey_faces(None)
    assert faces.shape == (1965, 28, 20)
    steps = np.abs(np.diff(faces, axis=0)).mean()
    assert steps < np.abs(faces[::2][:900] - faces[-1800::2][::-1][:900]).mean() / 2  # a film
    assert np.abs(np.diff(faces, axis=1)).mean() < 0.1  # smooth down each picture


@needs(*MNIST)
def test_mnist_is_mnist():
    pixels, labels = mnist_test(None)
    assert pixels.shape == (10000, 784)
    assert labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (pixels.min(), pixels.max()) == (0, 1)


def test_idx_files_are_read(tmp_path):
    header = bytes(16)
    (tmp_path / MNIST[0]).write_bytes(gzip.compress(header + bytes(783) + b"\xff" + bytes(784)))
    (tmp_path / MNIST[1]).write_bytes(gzip.compress(bytes(8) + b"\x07\x03"))
    pixels, labels = mnist_test(tmp_path)
    assert pixels.shape == (2, 784)
    assert pixels[0].nonzero().flatten().tolist() == [783]
    assert pixels.max() == 1
    assert labels.tolist() == [7, 3]


# Scores


def test_two_means_accuracy_does_not_depend_on_names():
    y = np.array([[0.0], [0.1], [5.0], [5.1], [5.2]])
    second = np.array([False, False, True, True, False])
    assert two_means_accuracy(y, second) == two_means_accuracy(y, ~second) == pytest.approx(0.8)


def test_neighbour_agreement_by_hand():
    y = np.array([[0.0], [1.0], [2.1], [3.3], [10.0]])
    scores = neighbour_agreement(y, ["a", "a", "b", "b", "b"], neighbors=2)
    # neighbours: 0: 1, 2; 1: 0, 2; 2: 1, 3; 3: 2, 1; 4: 3, 2
    assert scores["share"] == pytest.approx((1 + 1 + 1 + 1 + 2) / 10)
    assert scores["majority"] == pytest.approx(4 / 5)  # the nearer one decides a tie: 2 goes to 1
    apart = neighbour_agreement(y, ["a", "a", "b", "b", "b"], neighbors=1, apart=1)
    assert apart["share"] == pytest.approx(1 / 5)  # 0: 2, 1: 3, 2: 0, 3: 1, 4: 2


def test_interval_is_students():
    value = mean_and_interval([0.0, 1.0, 2.0])
    assert value["mean"] == pytest.approx(1)
    assert value["interval"] == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    assert plus_minus(value, 1, 100, "+") == "+100.0 ± 248.4"
    assert mean_and_interval([3.0]) == {"mean": 3.0, "interval": None}
    assert plus_minus(mean_and_interval([3.0])) == "3.00"


def test_cut_is_the_normalised_cut_and_the_optimum_the_least():
    graph = small_graph("random", 8, 0)
    weights = graph.to_dense().numpy()
    parts = (np.arange(1, 2**7)[:, None] >> np.arange(8)) & 1
    values = normalized_cuts(weights, parts)
    expected = [normalized_cut(torch.tensor(part), graph).item() for part in parts]
    np.testing.assert_allclose(values, expected, rtol=1e-10)
    found = cuts_of(graph)
    assert found["optimum"] == pytest.approx(min(expected))
    assert found["second_eigenvalue"] <= found["optimum"]
    assert found["optimum"] <= found["sweep"] * (1 + 1e-12)
    assert found["sweep"] <= found["sign"] * (1 + 1e-12)


# Manifolds


@pytest.mark.parametrize("name", MANIFOLDS)
def test_modes_are_orthogonal(name):
    """On a sample of the uniform density the Gram matrix of the normalised modes is near the identity."""
    manifold, n = MANIFOLDS[name](), 40000
    u = manifold.sample(n, 0.0, np.random.default_rng(0))
    modes = np.stack([mode.function(u) for mode in manifold.modes[:9]], 1)
    modes /= np.sqrt((modes**2).mean(0))
    np.testing.assert_allclose(modes.T @ modes / n, np.eye(9), atol=6 / np.sqrt(n))


@pytest.mark.parametrize("name", MANIFOLDS)
def test_modes_solve_the_eigenvalue_problem(name):
    """−Δ f = λ f by central differences in the interior, in the coordinates of each manifold."""
    manifold, h = MANIFOLDS[name](), 1e-3
    u = manifold.sample(200, 0.0, np.random.default_rng(0))

    def second(f, axis):
        e = h * np.eye(u.shape[1])[axis]
        return (f(u + e) - 2 * f(u) + f(u - e)) / h**2

    def first(f, axis):
        e = h * np.eye(u.shape[1])[axis]
        return (f(u + e) - f(u - e)) / (2 * h)

    def laplacian(f):
        if name in ("disc", "ring"):
            r = u[:, 0]
            return second(f, 0) + first(f, 0) / r + second(f, 1) / r**2
        if name == "sphere":  # of f extended along rays
            return sum(second(lambda v: f(v / np.linalg.norm(v, axis=1, keepdims=True)), i) for i in range(3))
        return sum(second(f, axis) for axis in range(u.shape[1]))

    interior = np.ones(len(u), bool)
    if name == "disc":
        interior = u[:, 0] > 0.1
    if name == "eight":  # the second derivative is taken along a loop
        interior = (np.abs(u[:, 0] - LOOP) > 2 * h) & (u[:, 0] > 2 * h) & (u[:, 0] < 2 * LOOP - 2 * h)
    for mode in manifold.modes[:9]:
        f = mode.function(u)
        error = np.abs(-laplacian(mode.function) - mode.value * f)[interior]
        assert error.max() < 2e-3 * max(mode.value, 1) * np.abs(f).max()


@pytest.mark.parametrize(
    ("name", "axis", "ends"),
    [("disc", 0, [1]), ("ring", 0, [0.5, 1]), ("square", 0, [-1, 1]), ("square", 1, [-1, 1]), ("cylinder", 1, [0, 2])],
)
def test_slope_at_the_boundary_is_zero(name, axis, ends):
    manifold, h = MANIFOLDS[name](), 1e-5
    for end in ends:
        u = manifold.sample(20, 0.0, np.random.default_rng(0))
        u[:, axis] = end
        e = h * np.eye(u.shape[1])[axis]
        for mode in manifold.modes[:9]:
            assert np.abs(mode.function(u + e) - mode.function(u - e)).max() / (2 * h) < 1e-4


def test_modes_of_the_eight_are_continuous_with_slopes_that_add_up_to_zero():
    h = 1e-6
    leaving = np.array([[h], [LOOP - h], [LOOP + h], [2 * LOOP - h]])  # along the four branches
    for mode in MANIFOLDS["eight"]().modes[:9]:
        values = mode.function(leaving)
        assert np.ptp(values) < 20 * h
        slopes = (values - mode.function(np.array([[0.0]]))) / h
        assert abs(slopes.sum()) < 1e-3


KNOWN = {
    "circle": [(1, 2), (4, 2), (9, 2)],
    "eight": [
        ((np.pi / 2.622057554) ** 2, 1),
        ((2 * np.pi / 2.622057554) ** 2, 3),
        ((3 * np.pi / 2.622057554) ** 2, 1),
    ],
    "disc": [(1.841183781**2, 2), (3.054236928**2, 2), (3.831705970**2, 1)],
    "square": [(np.pi**2 / 4, 2), (np.pi**2 / 2, 1), (np.pi**2, 2)],
    "sphere": [(2, 3), (6, 5), (12, 7)],
    "cylinder": [(1, 2), (np.pi**2 / 4, 1), (1 + np.pi**2 / 4, 2)],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_eigenvalues(name):
    spaces = MANIFOLDS[name]().eigenspaces(3)
    assert [len(space) for space in spaces] == [count for _, count in KNOWN[name]]
    np.testing.assert_allclose([space[0].value for space in spaces], [value for value, _ in KNOWN[name]], rtol=1e-8)


@pytest.mark.parametrize("name", MANIFOLDS)
def test_coordinates_are_isometric(name):
    """Lengths of small steps in coordinates are those in space, and the volume is that of the coordinates' ranges."""
    manifold, h = MANIFOLDS[name](), 1e-6
    u = manifold.sample(100, 0.0, np.random.default_rng(0))
    if name == "sphere":
        np.testing.assert_allclose(np.linalg.norm(manifold.embed(u), axis=1), 1)
        return
    for axis in range(u.shape[1]):
        step = np.linalg.norm(manifold.embed(u + h * np.eye(u.shape[1])[axis]) - manifold.embed(u), axis=1) / h
        angular = name in ("disc", "ring") and axis == 1
        np.testing.assert_allclose(step, u[:, 0] if angular else 1, rtol=1e-4, atol=1e-5)
    assert np.abs(manifold.embed(u)[:, 0]).max() <= 1


def test_density_of_tilted_samples():
    """Means of x₁ on the square under ∝ exp(a x): coth a − 1/a; on the circle I₁(a)/I₀(a)."""
    a, n = 1.5, 40000
    for name, mean in (("square", 1 / math.tanh(a) - 1 / a), ("circle", iv(1, a) / iv(0, a))):
        manifold = MANIFOLDS[name]()
        x = manifold.embed(manifold.sample(n, a, np.random.default_rng(0)))[:, 0]
        assert x.mean() == pytest.approx(mean, abs=4 / math.sqrt(n))


def test_mean_angles_compare_eigenspaces():
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.standard_normal((50, 4)))[0]
    turned = np.concatenate([basis[:, :2] @ np.linalg.qr(generator.standard_normal((2, 2)))[0], basis[:, 2:3]], 1)
    assert mean_angles([basis[:, :2], basis[:, 2:3]], turned) == pytest.approx([0, 0], abs=1e-5)
    slanted = np.cos(0.3) * basis[:, 2:3] + np.sin(0.3) * basis[:, 3:]
    assert mean_angles([basis[:, 2:3]], slanted) == pytest.approx([np.degrees(0.3)])


def test_radius_gives_the_expected_number_of_neighbours():
    for name in ("circle", "sphere"):
        manifold = MANIFOLDS[name]()
        for n in (500, 2000):
            x = torch.from_numpy(manifold.embed(manifold.sample(n, 0.0, np.random.default_rng(0))))
            degree = len(Radius(radius(manifold, n, 40.0))(x).weight) / n
            assert degree == pytest.approx(40 * (n / 500) ** (2 / (manifold.dimension + 2)), rel=0.1)
