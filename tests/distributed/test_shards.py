"""Several processes give what one gives. The checks are in `shards` and `solves`, and run on every rank of a group."""

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
CASES = [(world, name) for world, names in NAMES.items() for name in (*names_of(shards), *names)]


@pytest.fixture(scope="module")
def said():
    """What the checks of each group of processes say: a group is started when it is first asked for."""
    known = {}

    def of_group(world):
        if world not in known:
            known[world] = launch.run([name for w, name in CASES if w == world], world)
        return known[world]

    return of_group


@pytest.mark.parametrize(("world", "name"), CASES, ids=lambda value: str(value))
def test_on_every_rank(said, world, name):
    failed = {rank: text for rank, text in enumerate(said(world)[name]) if text}
    assert not failed, "\n".join(f"rank {rank}:\n{text}" for rank, text in failed.items())
