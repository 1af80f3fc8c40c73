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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from shell import start

pytest.importorskip("sqlalchemy")

from remat.studies.executors import Dask, Processes, make_executor
from remat.studies.plan import Plan
from remat.studies.running import Event, Runner
from remat.studies.store import Store
from remat.studies.study import Study

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
        restarting = threading.Lock()  # kept: each runner counts cells, and one of them restarts the server
        with Store(url, tmp_path / "files") as store:
            assert store.add(plan) == 50

        def on_event(event: Event) -> None:
            solved.append(event.cell.digest)
            if event.done >= 15 and restarting.acquire(blocking=False):
                restart()

        def run() -> bool:
            with Store(url, tmp_path / "files") as mine, Processes(1) as executor:
                return Runner(mine, "chains", executor, on_event, stale=30).run()

        with ThreadPoolExecutor() as threads:
            runs = []
            for _ in range(2):
                runs.append(threads.submit(run))
                time.sleep(0.5)
            assert all(each.result(timeout=120) for each in runs)
        assert restarting.locked()
        with Store(url, tmp_path / "files") as store:
            assert store.counts("chains")["done"] == 50
            assert len(store.results("chains")) == 50
        assert len(solved) == len(set(solved))
        assert len(solved) >= 48  # a commit whose answer the restart swallowed is not reported


def test_500_cells_survive_the_loss_of_workers_client_and_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    plan = plan_of(50)
    Path("study.toml").write_text(
        """
        name = "chains"
        instances = {generate = [{generator = "unit-chain", n = [4, 5, 6, 7, 8]}]}
        problem = {budget = ["90%", "80%"]}
        methods = [{method = "greedy"}]
        solve = {time_limit = 20, seed = SEEDS}
    """.replace("SEEDS", str(list(range(50))))
    )
    assert Plan.from_file("study.toml").cells == plan.cells
    with (
        tempfile.TemporaryDirectory() as server,
        postgresql(Path(server)) as (url, restart),
        distributed.LocalCluster(**given, local_directory=str(tmp_path / "dask")) as cluster,
    ):
        address = cluster.scheduler_address.removeprefix("tcp://")
        finished: list[str] = []
        first = start(f"study run study.toml --store {url} --folder files --executor dask://{address}")
        assert first.stderr is not None
        for line in first.stderr:
            finished.append(line.partition("] ")[2].partition(":")[0])
            if line.startswith("[100/"):
                break
        first.send_signal(signal.SIGKILL)
        first.wait()
        finished += [line.partition("] ")[2].partition(":")[0] for line in first.stderr]
        with Store(url, "files") as store, Dask(address) as executor:
            before = store.counts("chains")
            assert before["done"] >= 100

            def on_event(event: Event) -> None:
                finished.append(event.cell.title)
                if event.done in (200, 400):  # a worker each time; its nanny starts another
                    os.kill(next(iter(executor._client.run(os.getpid).values())), signal.SIGKILL)
                elif event.done == 300:
                    restart()

            assert Runner(store, "chains", executor, on_event, stale=5.0).run()
            assert store.counts("chains") == {"waiting": 0, "running": 0, "done": 500, "failed": 0}
            results = store.results("chains")
            assert [each.cell.digest for each in results] == [cell.digest for cell in plan.cells]
            assert all(each.schedule or each.row["status"] == "infeasible" for each in results)
        assert len(finished) == len(set(finished))
        assert len(finished) >= 500 - 2 * 4  # cells whose answer the first runner, or the restart, swallowed


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """Run SLURM with this machine as its only node."""
    programs = ("munged", "slurmctld", "slurmd", "sbatch")
    if os.geteuid() != 0 or not all(map(shutil.which, programs)):
        pytest.skip("SLURM is not installed, or this is not root, who may start it")
    host = socket.gethostname().partition(".")[0]
    with socket.socket() as one, socket.socket() as two:
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], two.getsockname()[1]
    (folder / "slurm.conf").write_text(f"""
        ClusterName=test
        SlurmctldHost={host}(127.0.0.1)
        AuthType=auth/munge
        AuthInfo=socket={folder}/munge.socket
        SlurmUser=root
        SlurmctldPort={ports[0]}
        SlurmdPort={ports[1]}
        SlurmctldPidFile={folder}/slurmctld.pid
        SlurmdPidFile={folder}/slurmd.pid
        SlurmdSpoolDir={folder}/spool
        StateSaveLocation={folder}/state
        ProctrackType=proctrack/linuxproc
        TaskPlugin=task/none
        SelectType=select/cons_tres
        SelectTypeParameters=CR_CPU
        MpiDefault=none
        JobAcctGatherType=jobacct_gather/none
        AccountingStorageType=accounting_storage/none
        NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory=4000 State=UNKNOWN
        PartitionName=debug Nodes=ALL Default=YES State=UP
    """)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = ["munged", "--foreground", "--force", *(f"--{word}={folder}/munge.{end}" for word, end in files.items())]
    conf = ["-D", "-f", f"{folder}/slurm.conf"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("SLURM_CONF", conf[-1])
        for command in (munge, ["slurmctld", *conf], ["slurmd", *conf]):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        until = time.monotonic() + 60
        while "idle" not in subprocess.run(["sinfo"], check=False, capture_output=True, text=True).stdout:
            assert time.monotonic() < until, "SLURM has no idle node"
            time.sleep(0.5)
        yield


def test_jobs_of_slurm_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask_jobqueue")
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as server, slurm(Path(server)):
        seen: set[str] = set()

        def on_event(event: Event) -> None:
            jobs = subprocess.run(["squeue", "-h", "-o", "%A"], check=True, capture_output=True, text=True)
            if event.done == 10:
                subprocess.run(["scancel", "--signal=KILL", "--full", jobs.stdout.split()[0]], check=True)
            seen.update(jobs.stdout.split())

        with Study(plan_of(10), "sqlite:///study.db") as study:
            assert study.run("slurm:1,memory=1GiB", on_event=on_event)
            assert study.counts()["done"] == 100
            assert len(study.results()) == 100
        assert len(seen) >= 2
        jobs = subprocess.run(["squeue", "-h"], check=True, capture_output=True, text=True)
        assert jobs.stdout.count(" R ") == 0


def test_options_of_slurm_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask_jobqueue")
    with refused("remat.executor", culprit="wall"):
        make_executor("slurm:2,wall=1")
    monkeypatch.setenv("PATH", "")
    with refused("remat.unavailable", culprit="slurm"):
        make_executor("slurm:2")
