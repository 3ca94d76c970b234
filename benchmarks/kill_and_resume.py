"""Trainings that are killed and resumed: do they end as if nothing had happened?

    python -m benchmarks.kill_and_resume --kills 20

Each of the three experiments that train runs in a short form, twice undisturbed, to see that two runs agree. Then it is
killed (SIGKILL) once or twice at random moments: after a step, with a file half written by `torch.save`, before a file
takes the place of another, or after some time; and resumed in a new process until it ends. Compared are the numbers of
steps and epochs, every batch with the state of the random generators before it, the weights, the generators' state
after the training, all to the last bit, and the results without their times. One thread, on the CPU. Prints JSON.
"""

import argparse
import hashlib
import io
import json
import multiprocessing
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from experiments.runs import Run

TRAININGS = ("parametric", "spectral_layer")
KINDS = ("step", "writing", "replacing", "time")
Moment = tuple[str, float]  # kind and number of it, or seconds

CONTEXT = multiprocessing.get_context("forkserver")  # imports once; each run is a process of its own
CONTEXT.set_forkserver_preload([f"experiments.{name}" for name in TRAININGS])

OPTIONS: dict[str, dict[str, Any]] = {
    "parametric": {"data": ["sphere"], "encoders": ["edges"], "points": 200, "batch": 64, "width": 16, "seeds": 1},
    "spectral_layer": {"shapes": ["sphere", "torus"], "variants": ["layer"], "nuisance": [0], "seeds": 1},
}
OPTIONS["spectral_layer"] |= {"clouds": 16, "heldout": 16, "points": (30, 36), "batch": 4}
OPTIONS["spectral_layer"] |= {"neighbors": 5, "eigenvectors": 8}
FLAGS: dict[str, dict[str, Any]] = {
    "parametric": {"max_steps": 18, "limit_train_batches": 4},  # the last epoch is cut short
    "spectral_layer": {"max_epochs": 5, "check_val_every_n_epoch": 2},
}


def digest(value: Any) -> str:
    """Return a digest of tensors, arrays and JSON values, to the last bit."""
    if isinstance(value, dict):
        value = [[name, digest(item)] for name, item in value.items()]
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def random_state() -> str:
    """Return digest of the global random generators' states."""
    numpy_state: Any = np.random.get_state()
    return digest([random.getstate(), digest(numpy_state[1]), numpy_state[2:], digest(torch.get_rng_state())])


class Watch:
    """Counts the events of this process, and kills it at one of them."""

    def __init__(self, out: Path, moment: Moment | None) -> None:
        self.out, self.moment, self.counts = out, moment, Counter[str]()
        register_optimizer_step_post_hook(lambda *_: self.event("step"))
        sys.addaudithook(self.audit)
        self.save: Callable[[object, Any], None] = torch.save
        setattr(torch, "save", self.write_or_die)  # noqa: B010 (mypy takes no other function there)

    def event(self, kind: str, last_deed: Callable[[], object] = lambda: None) -> None:
        self.counts[kind] += 1
        if (kind, float(self.counts[kind])) == self.moment:
            last_deed()
            signal.raise_signal(signal.SIGKILL)

    def audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "os.rename" and str(arguments[0]).startswith(str(self.out)):
            self.event("replacing")

    def write_or_die(self, content: object, file: Any) -> None:
        buffer = io.BytesIO()
        self.save(content, buffer)
        whole = buffer.getvalue()
        write = file.write_bytes if isinstance(file, Path) else file.write
        self.event("writing", lambda: write(whole[: len(whole) // 2]))
        write(whole)


def note_trainings(module: Any, out: Path) -> None:
    """Let an experiment note its batches in order.jsonl, and what each training ended with in endings.jsonl."""
    training, train = import_module("experiments.training"), module.train
    at = [""]

    def noted(batches: Callable[[Any], Iterator[list[int]]]) -> Callable[[Any], Iterator[list[int]]]:
        def iterate(sampler: Any) -> Iterator[list[int]]:
            for i, batch in enumerate(batches(sampler)):
                with (out / "order.jsonl").open("a") as file:
                    file.write(json.dumps([at[0], sampler.epoch, i, digest(batch), random_state()]) + "\n")
                yield batch

        return iterate

    def observed(folder: Path, network: Any, *rest: Any) -> Any:
        at[0] = folder.name
        trainer = train(folder, network, *rest)
        ending = [at[0], trainer.global_step, trainer.current_epoch, digest(network.state_dict()), random_state()]
        with (out / "endings.jsonl").open("a") as file:
            file.write(json.dumps(ending) + "\n")
        return trainer

    for sampler in {training.Batches, getattr(module, "Neighborhoods", training.Batches)}:
        sampler.__iter__ = noted(sampler.__iter__)
    module.train = observed


def run_training(name: str, out: Path, moment: Moment | None = None) -> None:
    """Run the short form of an experiment, in a process of its own."""
    torch.set_num_threads(1)
    out.mkdir(exist_ok=True)
    with warnings.catch_warnings(), (out / "printed.txt").open("a") as log, redirect_stdout(log), redirect_stderr(log):
        warnings.simplefilter("ignore")
        module = import_module(f"experiments.{name}")
        note_trainings(module, out)
        Run.figure = lambda *_, **__: None  # type: ignore[method-assign]
        watch = Watch(out, moment)
        getattr(module, name)(out, **OPTIONS[name], trainer={**module.TRAINER, **FLAGS[name], "accelerator": "cpu"})
    (out / "counts.json").write_text(json.dumps(watch.counts))


def run(name: str, out: Path, moment: Moment | None = None) -> bool:
    """Return whether an experiment came to its end, or was killed at the moment; else RuntimeError."""
    process = CONTEXT.Process(target=run_training, args=(name, out, moment))
    process.start()
    process.join(moment[1] if moment and moment[0] == "time" else None)
    process.kill()  # nothing where it has ended
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{name} at {moment} in {out}: exit code {process.exitcode}")
    return process.exitcode == 0


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(item) for name, item in value.items() if "seconds" not in name}
    return value


def ending(out: Path) -> dict[str, Any]:
    """Return the results by which finished runs are compared."""
    order: dict[str, set[str]] = {}
    for folder, epoch, i, *noted in map(json.loads, (out / "order.jsonl").read_text().splitlines()):
        order.setdefault(f"{folder}: batch {i} of epoch {epoch}", set()).add(str(noted))
    cells = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()[1:]]
    trainings = [json.loads(line) for line in (out / "endings.jsonl").read_text().splitlines()]
    return {
        "order": {place: sorted(noted) for place, noted in sorted(order.items())},  # one, if all agree
        "trainings": sorted({name: found for name, *found in trainings}.items()),
        "cells": sorted([str(one["case"]), without_times(one["result"])] for one in cells if one["part"] == "training"),
    }


def differing(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [part for part in expected if found[part] != expected[part]]


def random_moment(rng: random.Random, counts: dict[str, int], seconds: float) -> Moment:
    """Return a random moment of an undisturbed run of so many events and seconds."""
    kind = rng.choice(KINDS)
    return kind, rng.uniform(0, seconds) if kind == "time" else rng.randint(1, counts[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="endings after one kill or two")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, differ, killed = random.Random(arguments.seed), [], 0
    with TemporaryDirectory() as temporary:
        expected, seconds, agree = {}, {}, {}
        for name in TRAININGS:
            whole, again = (Path(temporary) / f"{name}-{which}" for which in ("whole", "again"))
            run(name, whole)
            start = time.perf_counter()
            run(name, again)
            seconds[name], expected[name] = time.perf_counter() - start, ending(whole)
            agree[name] = not differing(ending(again), expected[name])
        for number in range(arguments.kills):
            name = TRAININGS[number % len(TRAININGS)]
            counts = json.loads((Path(temporary) / f"{name}-whole" / "counts.json").read_text())
            out = Path(temporary) / f"{number}"
            moments = [random_moment(rng, counts, seconds[name]) for _ in range(rng.randint(1, 2))]
            killed += sum(not run(name, out, moment) for moment in moments)
            if not run(name, out):
                raise RuntimeError(f"{name} was killed by another process")
            if parts := differing(ending(out), expected[name]):
                differ.append({"training": name, "moments": moments, "differ": parts})
    outcome = {"endings": arguments.kills, "kills": killed, "differ": len(differ), "differing": differ}
    print(json.dumps({**outcome, "undisturbed_runs_agree": agree, "seed": arguments.seed}, indent=2))
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
