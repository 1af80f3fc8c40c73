"""Studies on a Dask cluster whose workers are killed, and in a PostgreSQL that restarts."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from remat.studies.executors import Dask, Processes
from remat.studies.plan import Plan
from remat.studies.running import Event, Runner
from remat.studies.store import Store

pytestmark = pytest.mark.slow


def plan_of(seeds: int) -> Plan:
    return Plan.from_mapping(
        {
            "name": "chains",
            "instances": {"generate": [{"generator": "unit-chain", "n": [4, 5, 6, 7, 8]}]},
            "problem": {"budget": ["90%", "80%"]},
            "methods": [{"method": "greedy"}],
            "solve": {"time_limit": 20, "seed": list(range(seeds))},
        }
    )


def test_killed_dask_workers_lose_no_cell(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    given: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(**given, local_directory=str(tmp_path)) as cluster,
        Store(f"sqlite:///{tmp_path}/study.db") as store,
        Dask(cluster.scheduler_address.removeprefix("tcp://")) as executor,
    ):
        store.add(plan_of(5))
        killed = []

        def on_event(event: Event) -> None:
            if event.done in (5, 20):  # a worker each time; its nanny starts another
                pids = executor._client.run(os.getpid)
                os.kill(next(iter(pids.values())), signal.SIGKILL)
                killed.append(event.done)

        assert Runner(store, "chains", executor, on_event).run()
        assert len(killed) == 2
        assert store.counts("chains")["done"] == 50
        assert len(store.results("chains")) == 50


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[tuple[str, Any]]:
    """Run a server in a folder; yield its URL, and a function that restarts it at once."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), reverse=True)
    if not found:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL cannot run as root")
        user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
    data = str(folder / "data")

    def control(*words: str) -> None:
        options = ["-o", f"-p {port} -k {folder} -h 127.0.0.1"] if words[0] != "stop" else []
        subprocess.run(
            [*user, str(found[0]), "-D", data, "-w", "-l", str(folder / "log"), *options, *words],
            check=True, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip

    subprocess.run(
        [*user, str(found[0].with_name("initdb")), "-D", data, "-A", "trust", "-U", "remat"],
        check=True, stdout=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    control("start")
    try:
        yield f"postgresql+psycopg://remat@127.0.0.1:{port}/postgres", lambda: control("restart", "-m", "immediate")
    finally:
        control("stop", "-m", "immediate")


def test_two_runners_share_a_postgresql_that_restarts(tmp_path: Path) -> None:
    # pytest's folders are private to their user, and the path of a socket is short
    with tempfile.TemporaryDirectory() as server, postgresql(Path(server)) as (url, restart):
        plan = plan_of(5)
        solved: list[str] = []
        with Store(url, tmp_path / "files") as store:
            assert store.add(plan) == 50

        def on_event(event: Event) -> None:
            solved.append(event.cell.digest)
            if event.done == 15:
                restart()

        def run() -> None:
            with Store(url, tmp_path / "files") as mine, Processes(1) as executor:
                assert Runner(mine, "chains", executor, on_event, stale=30).run()

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
            time.sleep(0.5)
        for thread in threads:
            thread.join(120)
        with Store(url, tmp_path / "files") as store:
            assert store.counts("chains")["done"] == 50
            assert len(store.results("chains")) == 50
        assert len(solved) == len(set(solved))
        assert len(solved) >= 48  # a commit whose answer the restart swallowed is not reported
