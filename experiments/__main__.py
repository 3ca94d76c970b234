"""Command line: ``python -m experiments demo [--config configs/demo.yaml] [--steps 300 ...]``.

``python -m experiments list`` names the experiments. One is added by its name in `EXPERIMENTS`, that of a module
and of the function in it, by a file ``configs/<name>.yaml`` of its defaults, and by a section in docs/experiments.md.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module

from jsonargparse import ArgumentParser

from experiments.runs import Refusal

EXPERIMENTS = (
    "demo",
    "bars",
    "words",
    "speech",
    "manifolds",
    "faces",
    "cut",
    "outofsample",
    "weightings",
    "spectral_layer",
    "parametric",
)


def experiment(name: str) -> Callable[..., None]:
    """The function of an experiment. Its module is loaded here, as those of trainings take seconds to import."""
    function: Callable[..., None] = getattr(import_module(f"experiments.{name}"), name)
    return function


def headline(function: Callable[..., None]) -> str:
    """First line of the docstring."""
    return (function.__doc__ or "").splitlines()[0]


def list_experiments() -> None:
    """Name the experiments, one line each."""
    for name in EXPERIMENTS:
        print(f"{name:14} {headline(experiment(name))}")


def parser_of(function: Callable[..., None]) -> ArgumentParser:
    """Typed options of a function's arguments; of ``trainer``, a dict, those of Lightning's Trainer."""
    parser = ArgumentParser(description=headline(function), allow_abbrev=False)
    parser.add_argument("--config", action="config", help="file of arguments; those after it override it")
    parser.add_function_arguments(function, as_positional=False, skip={"trainer"})
    if (flags := inspect.signature(function).parameters.get("trainer")) is not None:
        from experiments.training import add_trainer_flags

        add_trainer_flags(parser, flags.default)
    return parser


def spelled_out(arguments: Iterable[str]) -> list[str]:
    """``--data-dir`` as ``--data_dir``, and ``--quick`` and ``--fresh`` without a value as ``--quick=true``."""
    result = [re.sub(r"^--[a-z][\w.-]*", lambda name: "--" + name[0][2:].replace("-", "_"), a) for a in arguments]
    for i, (option, following) in enumerate(zip(result, [*result[1:], "--"], strict=True)):
        if option in ("--quick", "--fresh") and following.startswith("--"):
            result[i] += "=true"
    return result


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment named in the arguments (default: those of the command line)."""
    arguments = spelled_out((sys.argv[1:] if arguments is None else arguments) or ["--help"])
    names = arguments[:1] if arguments[0] in EXPERIMENTS else EXPERIMENTS
    parser = ArgumentParser(prog="python -m experiments", allow_abbrev=False)
    commands = parser.add_subcommands(dest="name")
    functions = {name: experiment(name) for name in names}
    functions["list"] = list_experiments
    for name, function in functions.items():
        commands.add_subcommand(name, parser_of(function), help=headline(function))
    parsed = parser.parse_args(arguments).as_dict()
    options = parsed[parsed["name"]] or {}
    options.pop("config", None)
    try:
        functions[parsed["name"]](**options)
    except Refusal as refusal:
        raise SystemExit(f"error: {refusal}") from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on from what is finished") from None


if __name__ == "__main__":
    main()
