"""The command line: configurations, help, and what is refused with a message."""

import inspect
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from experiments.__main__ import EXPERIMENTS, experiment, main, spelled_out

NAMES = list(EXPERIMENTS)


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
    for name, line in zip(NAMES, lines, strict=True):
        assert line.split(maxsplit=1)[1] == experiment(name).__doc__.splitlines()[0]


def test_list_and_help_import_no_torch():
    """They answer within a second: what an experiment needs is imported when it is asked for."""
    code = "import sys\nfrom experiments.__main__ import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    code += "assert not {'torch', 'matplotlib', 'sklearn'} & set(sys.modules)"
    for arguments in (["list"], ["--help"], ["nothing"]):
        subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=True)


def test_options_are_spelled_out():
    arguments = ["cut", "--data-dir", "a-b", "--quick", "--trainer.max-epochs=-1", "--seeds", "-1", "--fresh"]
    expected = ["cut", "--data_dir", "a-b", "--quick=true", "--trainer.max_epochs=-1", "--seeds", "-1", "--fresh=true"]
    assert spelled_out(arguments) == expected
    assert spelled_out(["bars", "--quick", "--out"]) == ["bars", "--quick=true", "--out"]  # a value is missing
    assert spelled_out(["bars", "--print_config"]) == ["bars", "--print_config"]
    assert spelled_out(["bars", "--help"]) == ["bars", "--help"]


THING, PROFILER = {"class_path": "foreign.Thing"}, "pytorch_lightning.profilers.PyTorchProfiler"
FOREIGN = [
    ["--trainer.profiler.class_path=foreign.Thing"],
    ["--trainer", '{"profiler": {"class_path": "foreign.Thing"}}'],
    ["--trainer.profiler.help=foreign.Thing"],
    ["--trainer.accelerator.class_path", "foreign.Thing"],
    ["--trainer.accelerator.class_path", "pytorch_lightning.trainer.trainer.os.system"],  # Lightning's name for it
    {"profiler": THING},
    {"profiler": {"class_path": PROFILER, "dict_kwargs": {"a": THING}}},
    {"profiler": {"class_path": PROFILER, "dict_kwargs": {"a": [THING]}}},
]
LOGGER = {"class_path": "pytorch_lightning.loggers.CSVLogger", "init_args": {"save_dir": "a"}}
NOT_TAKEN = [{"callbacks": [THING]}, {"logger": [THING]}, {"logger": LOGGER}, {"plugins": THING}, {"strategy": THING}]


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
    with pytest.raises(SystemExit, match="not imported: a class_path must begin with pytorch_lightning or experiments"):
        main(["parametric", "--quick", "--out", str(tmp_path / "out"), *arguments])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", NOT_TAKEN, ids=str)
def test_callbacks_and_loggers_are_no_arguments(given, foreign, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["parametric", "--quick", "--out", str(tmp_path / "out"), *arguments_of(given, tmp_path)])
    assert re.search(f"does not accept option 'trainer.{next(iter(given))}", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["foreign.Thing", '{"class_path": "foreign.Thing"}', "nothing"])
def test_word_that_names_no_profiler_is_refused(name, foreign, tmp_path):
    with pytest.raises(SystemExit, match=r"does not take --trainer.*: .*can only be one of"):
        main(["parametric", "--quick", "--out", str(tmp_path / "out"), "--trainer.profiler", name])


@pytest.mark.parametrize("content", [b"\x80\xff\x00", b"seeds: [1\n", b"seeds: {1\x00"])
def test_damaged_configuration_is_named(content, tmp_path):
    (tmp_path / "config.yaml").write_bytes(content)
    for arguments in (["--config", str(tmp_path / "config.yaml")], [f"--config={tmp_path / 'config.yaml'}"]):
        with pytest.raises(SystemExit, match=r"config\.yaml is damaged \(.+\): mend it, or give the arguments"):
            main(["bars", *arguments])


# Arguments that an experiment cannot fulfil, and a part of its one message.
REFUSED = [
    ("bars", "--device gpu", "must be"),
    ("manifolds", "--shapes [torus]", "--shapes must be of circle.*got torus"),
    ("manifolds", "--reference 3", "--reference must be"),
    ("manifolds", "--jobs 0 --seeds '{500: 1}' --reference 500", "--jobs must be at least 1, got 0"),
    ("manifolds", "--seeds '{500: 0}' --reference 500", "--seeds must be at least 1"),
    ("spectral_layer", "--shapes [cube]", "--shapes must be of sphere.*got cube"),
    ("spectral_layer", "--variants []", "--variants must be of layer.*got none"),
    ("spectral_layer", "--eigenvectors 9", "--eigenvectors more than"),
    ("spectral_layer", "--points [6,90]", "--points must be"),
    ("parametric", "--data [cube]", "--data must be of sphere.*got cube"),
    ("parametric", "--encoders []", "--encoders must be of edges, spectralnet, neuralef, got none"),
    ("parametric", "--data [digits] --trainer.max_steps -1", "--trainer.max_steps or"),
    ("weightings", "--sets [mnist] --data-dir nowhere", "t10k-images.* is missing"),
    ("parametric", "--points 110 --data [sphere]", "--batch must be positive and at most the number of examples"),
    ("parametric", "--data [digits] --trainer.accelerator abacus", "Trainer does not take --trainer.*abacus"),
    ("weightings", "--sets [cifar]", "--sets must be of digits, mnist, got cifar"),
    ("weightings", "--splits 1", "--splits must be at least 2"),
    ("weightings", "--labels [0,10]", "--labels must be at least 1"),
    ("weightings", "--tuned_at 7", "--tuned_at must be one of --labels_new"),
    ("choosing", "--sets [cifar,iris]", "--sets must be of iris, wine.*got cifar"),
    ("choosing", "--draws 0", "--draws must be at least 1"),
    ("grouping", "--labelled 1", "--labelled must be"),
    ("grouping", "--tasks [cubes]", "got cubes"),
    ("outofsample", "--repeats 1", "--repeats must be at least 2, got 1"),
    ("outofsample", "--fractions [-1.0]", "--fractions must be in"),
    ("outofsample", "--sets [ionosphere] --data-dir nowhere", "ionosphere.data is missing: .*http"),
]


@pytest.mark.parametrize(("name", "arguments", "says"), REFUSED, ids=[" ".join(row[:2]) for row in REFUSED])
def test_what_an_experiment_cannot_do_is_refused(name, arguments, says, tmp_path):
    with pytest.raises(SystemExit, match=says):
        main([name, *shlex.split(arguments), "--out", str(tmp_path)])
