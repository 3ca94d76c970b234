"""Several processes give what one gives, and fail together. All checks of a group of processes are one test.

The processes of a group are started once, whichever worker of pytest runs it. More processes than cores wait for each
other at each of thousands of messages: with 3 and 4 of them what matters.
"""

import contextlib
import os
import signal
import subprocess
import sys

import faults
import keeping
import launch
import lit
import properties
import pytest
import shards
import solves
import training


def names_of(module):
    return [f"{module.__name__}.{name}" for name in vars(module) if name.startswith("check_")]


DEADLY = "faults.check_a_rank_that_dies", "faults.kill_in_a_backward"  # the last ones
LAWS, FAULTS = names_of(properties), names_of(faults)
WHOLE = [*names_of(shards), *names_of(solves), *names_of(keeping)]
FEW = [name for name in names_of(shards) if name != "shards.check_weights_and_their_gradients"]
PAIRS = "solves.check_eigenpairs_are_those_of_one_process"
FITS = "keeping.check_a_fit_loads_on_other_numbers_of_ranks"
FACES = names_of(solves)[-4:]  # in every dtype
MESH = "training.check_shards_beside_data_parallel_training"
NAMES = {
    1: WHOLE,
    2: [*WHOLE, *names_of(training), *names_of(lit), *LAWS, *FAULTS],
    3: [*FEW, PAIRS, *FACES, FITS, MESH, *LAWS[:2], *FAULTS],
    4: [FEW[0], FEW[1], PAIRS, MESH],
}


@pytest.mark.parametrize(("world", "names"), [*NAMES.items(), *((world, DEADLY[1:]) for world in (2, 3))])
def test_on_every_rank(world, names):
    said = launch.run(names, world)
    for deadly in said.keys() & set(DEADLY):
        assert said[deadly].pop() == "never finished"  # the one that was killed
    assert launch.failures(said) == ""


LOSING = """
import os, signal, sys
import torch
from torch.distributed import init_process_group
from torch_lapeig.distributed import DistributedError, Ranks

rank = int(sys.argv[1])
init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=2)
ranks = Ranks(timeout=20.0)
if rank == 0:  # its process is the server of the store
    os.kill(os.getpid(), signal.SIGKILL)
input()  # until it is gone
try:
    ranks.sum(torch.ones(3))
except DistributedError as error:
    print(error, file=sys.stderr)
    os._exit(3)
"""


@contextlib.contextmanager
def two_processes(code, meeting):
    """Two processes that run some code, with their rank and what they meet by as arguments."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    commands = [[sys.executable, "-c", code, str(rank), str(meeting)] for rank in (0, 1)]
    started = [subprocess.Popen(command, env=environment, **pipes) for command in commands]
    try:
        yield started
    finally:
        for process in started:
            process.kill()


def test_a_rank_that_loses_the_store_says_so_in_one_line():
    with two_processes(LOSING, launch.free_port()) as started:
        assert started[0].wait(120) == -signal.SIGKILL
        said = started[1].communicate("\n", timeout=120)[1]
        assert started[1].returncode == 3
        assert len(said.splitlines()) == 1
        assert "rank 1 has lost another rank" in said


ENDING = """
import os, sys, threading
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch_lapeig.distributed import Ranks

rank, meeting = int(sys.argv[1]), sys.argv[2]
init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
ranks = Ranks(timeout=20.0)
for thread in map(int, os.listdir("/proc/self/task")):  # gloo's threads run when no other does, so they let go late
    os.sched_setaffinity(thread, {min(os.sched_getaffinity(0))})
    if thread != threading.get_native_id():
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
sys.setswitchinterval(100.0)
ranks.sum(torch.ones(3))
destroy_process_group()
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="priorities of threads are those of Linux")
def test_processes_that_end_after_a_collective_do_not_abort(tmp_path):
    with two_processes(ENDING, tmp_path / "meet") as started:
        assert [process.wait(120) for process in started] == [0, 0]
