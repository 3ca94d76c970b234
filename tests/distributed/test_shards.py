"""Several processes give what one gives. The checks are in `shards` and `solves`, and run on every rank of a group.

All checks of a group are one test: its processes are started once, whichever worker of pytest runs it.
"""

import launch
import pytest
import shards
import solves


def names_of(module):
    return [f"{module.__name__}.{name}" for name in vars(module) if name.startswith("check_")]


# More processes than cores wait for each other at each of thousands of messages: with 3 and 4 of them what matters.
PAIRS, SECOND = "solves.check_eigenpairs_are_those_of_one_process", "solves.check_second_derivatives"
MESH = "solves.check_a_dimension_of_a_mesh"
ALL = [name for name in names_of(solves) if name != MESH]
NAMES = {1: ALL, 2: ALL, 3: [PAIRS, SECOND], 4: [PAIRS, MESH]}


@pytest.mark.parametrize("world", NAMES, ids="{} processes".format)
def test_on_every_rank(world):
    said = launch.run([*names_of(shards), *NAMES[world]], world)
    assert launch.failures(said) == ""
