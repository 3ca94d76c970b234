"""Command line: ``python -m experiments demo [--config configs/demo.yaml] [--steps 300 ...]``.

``python -m experiments list`` names the experiments. One is added by its name in `EXPERIMENTS`, that of a module
and of the function in it, by a file ``configs/<name>.yaml`` of its defaults, and by a section in docs/experiments.md.
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

EXPERIMENTS = (
    "demo",
    "bars",
    "words",
    "speech",
    "manifolds",
    "faces",
    "cut",
    "outofsample",
    "methods",
    "weightings",
    "spectral_layer",
    "parametric",
    "roll",
)


# Modules whose classes an argument or a configuration may name (class_path): naming imports, and imports run code.
IMPORTABLE = ["pytorch_lightning", "experiments"]
set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=IMPORTABLE)


class Parser(ArgumentParser):
    """That of jsonargparse, which says of a module that is not imported who may be named."""

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
    """Every ``class_path`` in nested options, also where jsonargparse takes any value."""
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
    """The function of an experiment. Its module is loaded here, as those of trainings take seconds to import."""
    function: Callable[..., None] = getattr(import_module(f"experiments.{name}"), name)
    return function


def headline(name: str) -> str:
    """First line of the docstring of an experiment, read from its source: imports of all would take seconds."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return next((ast.get_docstring(f) or "" for f in functions if f.name == name), "").partition("\n")[0]


def list_experiments() -> None:
    """Name the experiments, one line each."""
    for name in EXPERIMENTS:
        print(f"{name:14} {headline(name)}")


def parser_of(function: Callable[..., None]) -> Parser:
    """Typed options of a function's arguments; of ``trainer``, a dict, those of Lightning's Trainer."""
    parser = Parser(description=(function.__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--config", action="config", help="file of arguments; those after it override it")
    parser.add_function_arguments(function, as_positional=False, skip={"trainer"})
    if (flags := inspect.signature(function).parameters.get("trainer")) is not None:
        from experiments.training import add_trainer_flags

        add_trainer_flags(parser, flags.default)
    return parser


def spelled_out(arguments: Iterable[str]) -> list[str]:
    """``--data-dir`` as ``--data_dir``, and flags such as ``--quick`` without a value as ``--quick=true``."""
    result = [re.sub(r"^--[a-z][\w.-]*", lambda name: "--" + name[0][2:].replace("-", "_"), a) for a in arguments]
    for i, (option, following) in enumerate(zip(result, [*result[1:], "--"], strict=True)):
        if option in ("--quick", "--fresh", "--distributed") and following.startswith("--"):
            result[i] += "=true"
    return result


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment named in the arguments (default: those of the command line)."""
    arguments = spelled_out((sys.argv[1:] if arguments is None else arguments) or ["--help"])
    parser = Parser(prog="python -m experiments", allow_abbrev=False)
    commands = parser.add_subcommands(dest="name")
    for name in EXPERIMENTS:
        # Only the one that is asked for is imported; of the others the help shows a line.
        named = parser_of(experiment(name)) if name == arguments[0] else Parser()
        commands.add_subcommand(name, named, help=headline(name))
    commands.add_subcommand("list", Parser(), help="name the experiments, one line each")
    check_configurations(arguments)
    parsed = parser.parse_args(arguments).as_dict()
    if parsed["name"] == "list":
        list_experiments()
        return
    options = parsed[parsed["name"]] or {}
    options.pop("config", None)
    for path in class_paths(options):
        check_class_path(path)
    from experiments.runs import Refusal  # here, because it imports torch, which `list` does without

    try:
        experiment(parsed["name"])(**options)
    except Refusal as refusal:
        raise SystemExit(f"error: {refusal}") from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on from what is finished") from None


if __name__ == "__main__":
    main()
