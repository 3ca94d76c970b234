"""Runs checks in groups of processes on the loopback: each group of processes is started once, for all its checks."""

import importlib
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

FOLDERS = (str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2]))
CHECKS = ("shards", "solves", "keeping", "training", "lit", "properties", "faults")
# What takes seconds to import is imported once, and every process is forked from there.
PRELOADED = ["torch", "torch._dynamo", "sklearn.cluster", *CHECKS]
PATIENCE = 20.0  # seconds that a rank waits for the others in a check
DEADLINE = 900.0  # seconds for all checks of a group; two took 520 on a machine with twelve jobs a core


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(names, world):
    """Return the traceback of each check, "module.function", on each rank; "" where it passed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        given = [(names, rank, world, port, folder) for rank in range(world)]
        started = [context.Process(target=work, args=arguments, daemon=True) for arguments in given]
        for process in started:
            process.start()
        end = time.monotonic() + DEADLINE
        for process in started:
            process.join(max(0.1, end - time.monotonic()))
        for process in started:
            if process.is_alive():
                process.kill()
                process.join()
        said = [said_by(Path(folder) / f"{rank}.jsonl") for rank in range(world)]
    return {name: [words.get(name, "never finished") for words in said] for name in names}


def failures(said):
    """Return the failures, check by check and rank by rank; "" where there are none."""
    words = ((name, rank, text) for name, of_ranks in said.items() for rank, text in enumerate(of_ranks) if text)
    return "\n".join(f"{name}, rank {rank}:\n{text}" for name, rank, text in words)


def said_by(file):
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(json.loads(line) for line in lines)


def work(names, rank, world, port, folder):
    sys.path[:0] = FOLDERS
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    warnings.simplefilter("error")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    from torch_lapeig.distributed import Ranks

    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=PATIENCE))
    for name in names:
        group = dist.new_group(timeout=timedelta(seconds=PATIENCE))  # a failed check leaves the next one alone
        text, begin = "", time.perf_counter()
        try:
            ranks = Ranks(group, timeout=PATIENCE)
            with ranks.guard():
                module, function = name.split(".")
                getattr(importlib.import_module(module), function)(ranks)
        except BaseException:
            text = traceback.format_exc()
        with open(Path(folder) / f"{rank}.jsonl", "a") as file:
            print(json.dumps([name, text]), file=file, flush=True)
        if os.environ.get("DISTRIBUTED_TIMES") and rank == 0:
            print(f"{world} {name} {time.perf_counter() - begin:.2f} s", file=sys.stderr)
    dist.destroy_process_group()
    if os.environ.get("DISTRIBUTED_TIMES"):
        print(f"{world} rank {rank}: {time.process_time():.1f} s of the processor", file=sys.stderr)
