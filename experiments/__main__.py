"""Command line: ``python -m experiments demo [--config configs/demo.yaml] [--steps 300 ...]``."""

from jsonargparse import auto_cli

from experiments.demo import demo
from experiments.outofsample import outofsample


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment named in the arguments (default: those of the command line)."""
    auto_cli({"demo": demo, "outofsample": outofsample}, args=arguments, as_positional=False)


if __name__ == "__main__":
    main()
