"""Compiled kernels: cache folders, compiling processes, threads, failures."""

import os
import re
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from shell import shell

import remat
from remat.runtime import interruption
from remat.runtime.compiled import KernelSet, kernel, places, sets
from remat.runtime.compiled.decorators import inner
from remat.runtime.deadline import Deadline

PACKAGE = Path(remat.__file__).resolve().parent
KERNELS = {
    "annealing": "remat.heuristics.annealing.heuristic",
    "drops": "remat.heuristics.drops.heuristic",
    "rotor": "remat.heuristics.rotor.dynamic_programme",
}


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_only_kernel_modules_have_compiled_functions() -> None:
    """The digest covers modules by name; no other module imports numba."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if path.parent.name != "compiled":
            assert "numba" not in "".join(line for line in source.splitlines() if "import " in line), path
            assert path.name.endswith("kernel.py") or "from remat.runtime.compiled import inner" not in source, path
            decorated = "\n@kernel" in source or "\n@inner" in source
            assert not decorated or path.name.endswith("kernel.py"), path


def test_digest_changes_with_kernel_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / places.COMPILER).parent.mkdir(parents=True)
    (tmp_path / places.COMPILER).write_text("1")
    (tmp_path / "a_kernel.py").write_text("1")
    (tmp_path / "other.py").write_text("1")
    monkeypatch.setattr(places, "PACKAGE", tmp_path)
    digests = []
    for name, text in (("a_kernel.py", "1"), ("other.py", "2"), ("a_kernel.py", "2"), ("b_kernel.py", "1")):
        (tmp_path / name).write_text(text)
        digests.append(places.digest.__wrapped__())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_digest_changes_with_options_that_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with that of the shell, so that ``remat warm-up`` compiles for Python programs."""
    before = places.digest.__wrapped__()
    monkeypatch.setenv("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    assert places.digest.__wrapped__() == before
    monkeypatch.setenv("NUMBA_OPT", "1")
    assert places.digest.__wrapped__() != before


def test_digest_covers_the_whole_package() -> None:
    assert places.PACKAGE == PACKAGE
    assert (PACKAGE / places.COMPILER).is_file()


def test_private_options_of_numba_exist() -> None:
    """Without `_nrt` kernels run ten times slower; without the others compilation takes longer."""
    from numba.core.registry import CPUDispatcher

    @inner
    def double(value):  # type: ignore[no-untyped-def]
        return 2 * value

    @kernel
    def four_times(value):  # type: ignore[no-untyped-def]
        return double(double(value)) + double(0)  # of a literal, too

    known = CPUDispatcher.targetdescr.options
    assert all(hasattr(known, option) for option in ("_nrt", "no_cpython_wrapper", "no_cfunc_wrapper"))
    assert four_times.targetoptions["_nrt"] is double.targetoptions["_nrt"] is False
    assert four_times(3) == 12
    (part,) = double.overloads.values()
    assert part.library.get_pointer_to_function(part.fndesc.llvm_func_name) == 0, "numba's code libraries have changed"
    assert type(four_times._cache).__name__ == "Cache", "numba's cache has changed"
    with pytest.raises(TypeError, match=r"double\(\) is compiled for other compiled functions only"):
        double(3)


def test_each_kernel_has_one_signature() -> None:
    """The examples use the real types, so no search waits for compilation."""
    from importlib import import_module

    from numba.core.registry import CPUDispatcher

    from remat.graphs.layered import layered
    from remat.heuristics.annealing import Annealing, AnnealingOptions
    from remat.heuristics.base import HeuristicRun
    from remat.heuristics.drops import Drops
    from remat.problem import Problem

    for name, module in KERNELS.items():
        found = import_module(module).KERNELS
        assert (found.name, found.module) == (name, module)
        assert found.ready()
    for order in ("fixed", "free"):
        problem = Problem(layered(40, 0.3, 5), "85%", order)
        start = Drops().run(problem, HeuristicRun())
        Annealing(AnnealingOptions(moves=5000)).run(problem, HeuristicRun(start=start))
    modules = [module for key, module in sys.modules.items() if key.startswith("remat.") and key.endswith("kernel")]
    functions = [f for module in modules for f in vars(module).values() if type(f) is CPUDispatcher]
    assert len(functions) > 5
    assert not {f.__name__: list(f.overloads) for f in functions if len(f.overloads) > 1}


#: Set of kernels that compiles in tenths of a second: a function that calls another, and a separate one.
SMALL = {
    "small_kernel.py": """
from remat.runtime.compiled import kernel
from remat.runtime.compiled.decorators import inner

@inner
def double(value):
    return 2 * value

@kernel
def total(values):
    result = 0
    for i in range(len(values)):
        result += double(values[i])
    return result

@kernel
def largest(values):
    result = values[0]
    for i in range(len(values)):
        result = max(result, values[i])
    return result
""",
    "small_set.py": """
import numpy as np
from remat.runtime.compiled import KernelSet

def _example():
    from small_kernel import largest, total
    return total(np.arange(5)), largest(np.arange(5))

KERNELS = KernelSet("small", __name__, _example)
""",
}
COUNT = """
import sys
from remat.runtime.compiled import KernelSet, places
from numba.core import event
class Listener(event.Listener):
    def on_start(self, event):
        print("compiling", event.data["dispatcher"].py_func.__name__)
    def on_end(self, event): pass
event.register("numba:compile", Listener())
import small_set
assert small_set.KERNELS.ready()
assert small_set._example() == (20, 4)
print(*(str(path) for path in places.readable()))
"""


@pytest.fixture(autouse=True)
def small_set(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the small set importable for child processes."""
    folder = tmp_path_factory.mktemp("small")
    for name, text in SMALL.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))


#: Waits too briefly for the compiling process, which continues.
IMPATIENT = """
import small_set
from remat.runtime.deadline import Deadline
waits = []
assert not small_set.KERNELS.ready(Deadline.after(0.1), lambda: waits.append(1))
assert waits == [1]
"""


def test_child_process_compiles_and_the_next_run_loads(tmp_path: Path) -> None:
    """The first run waits twice, so that the deadline of the first wait does not end the compilation."""
    done = run(IMPATIENT + COUNT, NUMBA_CACHE_DIR=str(tmp_path))
    assert "compiling" not in done.stdout, "the child process compiles"
    assert str(tmp_path) in done.stdout, done.stderr
    assert not done.stderr
    (folder,) = tmp_path.glob("remat-*/kernels-*")
    assert (folder / "small.ready").exists()
    broken = list(folder.glob("*.nbc"))
    for path in broken:  # compiled again and saved
        path.write_bytes(path.read_bytes()[:100])
    assert "compiling total" in run(COUNT, NUMBA_CACHE_DIR=str(tmp_path)).stdout
    assert all(path.stat().st_size > 100 for path in broken)


@pytest.mark.slow
def test_compilation_continues_after_the_end_of_the_run(tmp_path: Path) -> None:
    done = run(IMPATIENT, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("remat-*/kernels-*")
    until = time.monotonic() + 60
    while not (folder / "small.ready").exists() and time.monotonic() < until:
        time.sleep(0.05)
    kernels = sorted(path.name.split("-")[0] for path in folder.glob("*.nbi"))
    assert kernels == ["small_kernel.largest", "small_kernel.total"], "each compiled once"


@pytest.mark.slow
def test_remark_without_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``docker --user``: neither the package nor a home folder is writable."""
    (tmp_path / "file").write_text("")
    done = run(COUNT, NUMBA_CACHE_DIR=str(tmp_path / "file" / "below"))
    assert done.returncode == 0, done.stderr
    assert "compiling total" in done.stdout
    assert done.stderr.count("kernels are compiled in every run") == 1
    assert "Traceback" not in done.stderr
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    refused = shell("warm-up")
    assert refused.code == 2
    assert refused.err.startswith("remat: error: no folder for compiled kernels: ")
    assert refused.err.count("\n") == 1


@pytest.mark.slow
def test_failing_compiler_process_is_replaced(tmp_path: Path) -> None:
    done = run("import sys; sys.executable = '/bin/false'\n" + COUNT, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "compiling total" in done.stdout
    assert list(tmp_path.glob("remat-*/kernels-*/small.ready"))


def test_errors_of_examples_propagate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def example() -> None:
        raise OSError("no such thing")

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sets.launcher, "start", lambda *_: False)
    with pytest.raises(OSError, match="no such thing"):
        KernelSet("faulty", __name__, example).ready()


@pytest.mark.slow
def test_warm_up_compiles_all_sets_and_prints_the_folder(tmp_path: Path) -> None:
    code = "import sys, remat.cli; sys.exit(remat.cli.main(['warm-up']))"
    for compiling in (True, False):
        done = run(code, NUMBA_CACHE_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert ("compiling" in done.stdout) is compiling
        printed = set(re.findall(r"^(.+): ready", done.stdout, re.MULTILINE))
        assert printed >= set(KERNELS)
        (folder,) = tmp_path.glob("remat-*/kernels-*")
        assert f"kept in {folder.resolve()}" in done.stdout
        assert {path.stem for path in folder.glob("*.ready")} == printed


# -- threads and forks -----------------------------------------------------------------------------------------------

SMALL_CALL = """
import numpy as np
import small_set
def call():
    assert small_set.KERNELS.ready()
    return small_set._example()[0]
"""
THREADS = """
import os, sys, threading
errors, barrier = [], threading.Barrier(14)
def fork():
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if call() >= 0 else 2
        finally:
            os._exit(code)
    return pid
def work(number):
    barrier.wait()
    try:
        if number == 13:
            children.append(fork())
            return
        call()
    except BaseException as error:
        errors.append(error)
children = [fork()]
threads = [threading.Thread(target=work, args=(i,)) for i in range(14)]
[t.start() for t in threads]
[t.join() for t in threads]
children.append(fork())
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
assert not errors, errors
assert codes == [0, 0, 0], codes
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_fourteen_threads_with_forks(tmp_path: Path, kept: bool) -> None:
    """Forks before, during and after compilation, in a child process or here if nothing can be saved."""
    (tmp_path / "file").write_text("")
    done = run(SMALL_CALL + THREADS, NUMBA_CACHE_DIR=str(tmp_path if kept else tmp_path / "file" / "below"))
    assert done.returncode == 0, done.stderr


def test_waiting_threads_run_the_example_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sets.launcher, "start", lambda *_: False)
    calls: list[int] = []
    found = KernelSet("counted", __name__, lambda: calls.append(1))
    with ThreadPoolExecutor(14) as pool:
        assert list(pool.map(lambda _: found.ready(), range(14))) == [True] * 14
    assert calls == [1]
    assert found.loaded


def test_order_of_compilation_by_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process compiles the set needed first alone; two processes share the sets."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    started: list[list[str]] = []
    monkeypatch.setattr(sets.launcher, "start", lambda some, locks: started.append([name for _, name in some]) or True)
    three = [KernelSet(f"in order {number}", "nowhere", lambda: None) for number in range(3)]
    sets.begin(*three, processes=1)
    assert started == [["in order 0", "in order 1", "in order 2"]]
    sets.begin(*three, processes=2)
    assert started[1:] == [["in order 0", "in order 2"], ["in order 1"]]
    assert three[1].begin()
    three[1].compile()
    assert not three[1].begin()
    sets.begin(*three, processes=1)
    assert started[-1] == ["in order 0", "in order 2"]


def test_compilation_continues_after_a_failing_set(tmp_path: Path) -> None:
    (tmp_path / "two_sets.py").write_text(
        "from remat.runtime.compiled import KernelSet\n"
        "KernelSet('broken', 'two_sets', lambda: 1 / 0)\nKernelSet('good', 'two_sets', lambda: None)\n"
    )
    run(
        "import sys; sys.path.insert(0, sys.argv[1]); import two_sets\n"
        "from remat.runtime.compiled import KernelSet, begin\n"
        "from remat.runtime.deadline import Deadline\n"
        "begin(*(KernelSet.known[name] for name in ('broken', 'good')), processes=1)\n"
        "import time; end = time.monotonic() + 60\n"
        "while KernelSet.known['good'].compiled() is None and time.monotonic() < end: time.sleep(0.05)\n",
        str(tmp_path), NUMBA_CACHE_DIR=str(tmp_path / "cache"),
    )  # fmt: skip
    assert [path.name for path in (tmp_path / "cache").rglob("*.ready")] == ["good.ready"]


def test_interruption_while_loading_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines in the example expire then, so it may raise or end early."""
    monkeypatch.setattr(places, "writable", lambda: None)
    called: list[int] = []

    def raises() -> None:
        called.append(1)
        Deadline().check()

    def ends_early() -> None:
        called.append(2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sets.CompilingRemark)
        for number, example in enumerate((raises, ends_early)):
            found = KernelSet(f"interrupted {number}", "nowhere", example)
            with interruption.interrupts():
                interruption.request()
                assert not found.ready()
            assert not found.loaded
            assert found.ready()
    assert called == [1, 1, 2, 2]


def test_interrupted_loading_that_ends_late_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of an interrupted call may end after the interruption, during the next call."""
    monkeypatch.setattr(places, "writable", lambda: None)
    called: list[int] = []
    stopped, late = threading.Event(), threading.Event()

    def example() -> None:
        called.append(1)
        try:
            Deadline().check()
        finally:
            stopped.set()
            late.wait(10)

    found = KernelSet("interrupted late", "nowhere", example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sets.CompilingRemark)
        with interruption.interrupts():
            interruption.request()
            assert not found.ready()
            assert stopped.wait(10)
        threading.Timer(0.1, late.set).start()
        assert found.ready()
    assert called == [1, 1]


RACE = """
import sys, threading
from remat.runtime.compiled import inner, kernel
thread = threading.Thread(target=lambda: __import__("numba"))
thread.start()
while "numba" not in sys.modules:
    pass
{}
thread.join()
import numba.core.registry
"""


@pytest.mark.parametrize("first", ["inner(lambda x: x)", pytest.param("kernel(lambda x: x)", marks=pytest.mark.slow)])
def test_two_threads_import_numba(first: str) -> None:
    """Once failed with "cannot import name"."""
    done = run(RACE.format(first))
    assert done.returncode == 0, done.stderr
    assert not done.stderr
