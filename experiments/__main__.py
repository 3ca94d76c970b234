"""Command line: ``python -m experiments demo [--config configs/demo.yaml] [--steps 300 ...]``.

``python -m experiments list`` names the experiments; ``results`` fills README and docs with the numbers of recorded
runs (`experiments.results`); ``embed`` is for your own data (`torch_lapeig.command`). An experiment is added by its
name in `EXPERIMENTS`, that of a module and of the function in it, by a file ``configs/<name>.yaml`` of its defaults,
and by a page docs/experiments/<name>.md.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, set_parsing_settings

from experiments import results

EXPERIMENTS = (
    "demo",
    "bars",
    "founding",
    "manifolds",
    "cut",
    "outofsample",
    "weightings",
    "priors",
    "choosing",
    "spectral_layer",
    "grouping",
    "inverse",
    "design",
    "isospectral",
    "snapshots",
    "csl",
    "parametric",
)
EMBED = "Laplacian eigenmaps of your own data; installed users have it as torch-lapeig embed."

# Modules whose classes an argument or a configuration may name (class_path): naming imports, and imports run code.
IMPORTABLE = ["pytorch_lightning", "experiments"]
set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=IMPORTABLE)


class Parser(ArgumentParser):
    """Parser of jsonargparse that names the allowed classes of a module that is not imported."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with a message."""
        if denied := re.search(r"Importing '(\S+)' is not allowed", message):
            check_class_path(denied[1])
        super().error(message, ex)


def check_class_path(path: str) -> None:
    """Exit unless a class may be imported."""
    if path.partition(".")[0] not in IMPORTABLE:
        sys.exit(f"error: {path} is not imported: a class_path must begin with {' or '.join(IMPORTABLE)}")


def class_paths(value: Any) -> Iterator[str]:
    """Yield every ``class_path`` in nested options, also where jsonargparse takes any value."""
    if isinstance(value, dict) and "class_path" in value:
        yield str(value["class_path"])
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from class_paths(inner)


def check_configurations(arguments: Iterable[str]) -> None:
    """Exit if a file given by ``--config`` is no text or no YAML."""
    words = [word for argument in arguments for word in re.split("(?<=^--config)=", argument)]
    for option, value in pairwise(words):
        if option == "--config" and Path(value).is_file():
            try:
                yaml.compose(Path(value).read_text(encoding="utf-8"), yaml.SafeLoader)
            except (ValueError, yaml.YAMLError) as error:
                reason = " ".join(str(error).split())
                sys.exit(f"error: {value} is damaged ({reason}): mend it, or give the arguments without --config")


def experiment(name: str) -> Callable[..., None]:
    """Return the function of an experiment. Its module is loaded here, as those of trainings take seconds to import."""
    function: Callable[..., None] = getattr(import_module(f"experiments.{name}"), name)
    return function


def headline(name: str) -> str:
    """Return first line of an experiment's docstring, read from its file: loading it would take seconds."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return (ast.get_docstring(next(functions)) or "").splitlines()[0]


def list_experiments() -> None:
    """Name the experiments, one line each."""
    for name in EXPERIMENTS:
        print(f"{name:14} {headline(name)}")


def parser_of(name: str) -> Parser:
    """Return typed options of an experiment's arguments; of ``trainer``, a dict, those of Lightning's Trainer."""
    function = experiment(name)
    parser = Parser(description=headline(name), allow_abbrev=False)
    parser.add_argument("--config", action="config", help="file of arguments; those after it override it")
    parser.add_function_arguments(function, as_positional=False, skip={"trainer"})
    if (flags := inspect.signature(function).parameters.get("trainer")) is not None:
        from experiments.training import add_trainer_flags

        add_trainer_flags(parser, flags.default)
    return parser


def spelled_out(arguments: Iterable[str]) -> list[str]:
    """Return ``--data-dir`` as ``--data_dir``, and flags such as ``--quick`` without a value as ``--quick=true``."""
    result = [re.sub(r"^--[a-z][\w.-]*", lambda name: "--" + name[0][2:].replace("-", "_"), a) for a in arguments]
    for i, (option, following) in enumerate(zip(result, [*result[1:], "--"], strict=True)):
        if option in ("--quick", "--fresh") and following.startswith("--"):
            result[i] += "=true"
    return result


def main(arguments: list[str] | None = None) -> None:
    """Run what is named in the arguments (default: those of the command line)."""
    arguments = list((sys.argv[1:] if arguments is None else arguments) or ["--help"])
    if arguments[0] == "results":
        results.main(arguments[1:])
    elif arguments[0] == "embed":
        import_module("torch_lapeig.command").main(arguments)
    elif arguments == ["list"]:
        list_experiments()
    else:
        run(spelled_out(arguments))


def run(arguments: list[str]) -> None:
    """Run the experiment named in the arguments; of the others the headlines alone are read."""
    parser = Parser(prog="python -m experiments", allow_abbrev=False)
    commands = parser.add_subcommands(dest="name")
    for name in EXPERIMENTS:
        commands.add_subcommand(name, parser_of(name) if name == arguments[0] else Parser(), help=headline(name))
    for name, told in (("list", "Name the experiments."), ("results", results.main.__doc__), ("embed", EMBED)):
        commands.add_subcommand(name, Parser(), help=told)
    check_configurations(arguments)
    parsed = parser.parse_args(arguments).as_dict()
    options = parsed[parsed["name"]] or {}
    options.pop("config", None)
    for path in class_paths(options):
        check_class_path(path)
    from experiments.runs import Refusal

    try:
        experiment(parsed["name"])(**options)
    except Refusal as refusal:
        raise SystemExit(f"error: {refusal}") from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on from what is finished") from None


if __name__ == "__main__":
    main()
