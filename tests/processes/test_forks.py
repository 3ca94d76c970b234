"""A forked process has none of the other threads: it waits for nothing that they hold, and undoes what they did."""

import multiprocessing
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")

# A thread named "slow" stops inside of a function; a process is forked then, which does its own work.
BEGIN = """
import multiprocessing, sys, threading, warnings
import torch
from torch_lapeig import KNN, LaplacianEigenmaps, knn_graph
from torch_lapeig.graph import SparsePattern
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
x = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
inside, leave = threading.Event(), threading.Event()

def stopping(function):
    def call(*arguments):
        if threading.current_thread().name == "slow":
            inside.set()
            leave.wait(60)
        return function(*arguments)
    return call
"""
END = """
thread = threading.Thread(target=slow, name="slow", daemon=True)
thread.start()
assert inside.wait(60)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(30)
hangs = process.is_alive()
if hangs:
    process.kill()
    process.join()
leave.set()
thread.join(60)
sys.exit("the forked process hangs" if hangs else process.exitcode)
"""
CASES = {
    "an attribute that is kept": """
SparsePattern.components = stopping(SparsePattern.components)
slow = knn_graph(x, 3).connected_components
child = lambda: knn_graph(x + 1, 3).connected_components()
""",
    "the precision being set": """
torch.set_float32_matmul_precision("medium")
torch.set_float32_matmul_precision = stopping(torch.set_float32_matmul_precision)
slow = lambda: LaplacianEigenmaps(2, KNN(5))(x)
child = lambda: LaplacianEigenmaps(2, KNN(5))(x)
""",
    "the precision that is put back": """
torch.set_float32_matmul_precision("medium")
pause = stopping(lambda: None)
def rule(z, mask=None):
    pause()
    return knn_graph(z, 5, mask=mask)
slow = lambda: LaplacianEigenmaps(2, rule)(x)
def child():
    assert torch.get_float32_matmul_precision() == "medium"
    LaplacianEigenmaps(2, KNN(5))(x)
    assert torch.get_float32_matmul_precision() == "medium"
""",
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_process_that_is_forked_while_another_thread_is_inside(case):
    script = BEGIN + case + END
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # OpenMP itself may wait for ever in a forked process
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
