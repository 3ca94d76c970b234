"""Command line: ``python -m experiments demo [--config configs/demo.yaml] [--steps 300 ...]``.

``python -m experiments list`` names the experiments. An experiment is added by its function in `EXPERIMENTS`, a file
``configs/<name>.yaml`` of its defaults, and a section in docs/experiments.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable

from jsonargparse import auto_cli

from experiments.bars import bars
from experiments.cut import cut
from experiments.demo import demo
from experiments.faces import faces
from experiments.manifolds import manifolds
from experiments.outofsample import outofsample
from experiments.runs import Refusal
from experiments.speech import speech
from experiments.words import words

EXPERIMENTS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "bars": bars,
    "words": words,
    "speech": speech,
    "manifolds": manifolds,
    "faces": faces,
    "cut": cut,
    "outofsample": outofsample,
}


def list_experiments() -> None:
    """Name the experiments, one line each."""
    for name, function in EXPERIMENTS.items():
        print(f"{name:14} {(function.__doc__ or '').splitlines()[0]}")


def spelled_out(arguments: Iterable[str]) -> list[str]:
    """``--data-dir`` as ``--data_dir``, and an option without a value such as ``--quick`` as ``--quick=true``."""
    result = [re.sub(r"^--[a-z][\w-]*", lambda name: "--" + name[0][2:].replace("-", "_"), a) for a in arguments]
    for i, (option, following) in enumerate(zip(result, [*result[1:], "--"], strict=True)):
        if re.fullmatch(r"--(?!help|print_)\w+", option) and following.startswith("--"):
            result[i] += "=true"
    return result


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment named in the arguments (default: those of the command line)."""
    arguments = spelled_out(sys.argv[1:] if arguments is None else arguments)
    try:
        auto_cli({**EXPERIMENTS, "list": list_experiments}, args=arguments, as_positional=False)
    except Refusal as refusal:
        raise SystemExit(f"error: {refusal}") from None


if __name__ == "__main__":
    main()
