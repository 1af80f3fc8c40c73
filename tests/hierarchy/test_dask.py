"""A local cluster of dask as the executor, and one of its workers killed on the way."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from remat import Problem
from remat.graphs.families import unit_chain
from remat.hierarchy import Group, Hierarchy
from remat.hierarchy.options import Budgets, Effort
from remat.hierarchy.recursion import Knobs, Recursion
from tests.hierarchy.test_hierarchical_method import listed

EFFORT = Effort(("eviction",))
KNOBS = Knobs(Budgets(4, 4), EFFORT, EFFORT)


def hierarchy() -> Hierarchy:
    """A chain in groups of different lengths, so that each is a problem of its own."""
    n = 78
    groups, begin = [], 0
    for length in range(3, 13):
        back = 2 * n + 1 - begin
        groups.append(Group(str(length), np.arange(begin, begin + length), np.arange(back - length, back)))
        begin += length
    return Hierarchy(
        Problem(unit_chain(n), 20), Group("all", np.arange(n + 1), np.arange(n + 1, 2 * n + 1), tuple(groups))
    )


@pytest.mark.slow
def test_a_cluster_finds_what_is_found_here_though_a_worker_is_killed() -> None:
    distributed = pytest.importorskip("distributed")
    here = listed(Recursion(hierarchy(), KNOBS, workers=1))
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "processes": True}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        pids = list(client.run(os.getpid).values())
        assert len(pids) == 2
        notes: list[str] = []
        told: list[str] = []

        def kill() -> None:
            while not told:
                time.sleep(0.01)
            os.kill(pids[0], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        recursion = Recursion(
            hierarchy(), KNOBS, executor=client.get_executor(), workers=2, on_progress=told.append, on_note=notes.append
        )
        found = listed(recursion)
        killer.join()
        assert found == here
        assert not notes  # another worker did what the first one had
        assert told[-1] == "level 1 of 1, 10 of 10 groups"
