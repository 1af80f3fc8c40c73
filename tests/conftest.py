"""Fixtures shared by all tests."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import refusals
from hypothesis import settings

os.environ["REMAT_SCHEDULES"] = "off"  # tests solve what they say, whatever an earlier run stored

# No deadline for examples of property tests: the machine may be busy.
settings.register_profile("remat", deadline=None, print_blob=True)
settings.load_profile("remat")

ROOT = Path(__file__).resolve().parent.parent
#: Doctests import every module. Several are named `conftest`; `third_objective` would add an objective to all tests.
collect_ignore_glob = ["*conftest.py", "*third_objective.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Start recording messages, and restore Ctrl-C, which shells ignore in background jobs."""
    if config.getoption("--update-messages") or config.getoption("--replace-messages"):
        refusals.start_recording()
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def one_first(config: pytest.Config) -> Iterator[None]:
    """Let one worker collect before the others, which then load what it has compiled: frameworks and assertions.

    In a fresh checkout each of them would otherwise compile the same modules at the same time.
    """
    if not hasattr(config, "workerinput") or sys.platform == "win32":
        yield
        return
    import fcntl

    with Path(__file__).open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Exempt collected items from garbage collection, and collect less often.

    With all frameworks imported, the collector takes half of the collection time and a sixth of the test time.
    """
    gc.disable()
    try:
        with one_first(session.config):
            return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        default="",
        metavar="NAMES",
        help="run the conformance tests of these backends only, for example cp-sat,minizinc:gecode",
    )
    parser.addoption(
        "--update-messages", action="store_true", help="add messages of errors; rewrite tables of stages in docs"
    )
    parser.addoption("--replace-messages", action="store_true", help="replace recorded messages of the same kinds")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the messages of this run, or send them from a worker to the main process."""
    if refusals.recorded is not None and (output := getattr(session.config, "workeroutput", None)) is not None:
        output["messages"] = {kind: sorted(texts) for kind, texts in refusals.recorded.items()}
    elif refusals.recorded:
        refusals.record_texts(refusals.recorded, replace=session.config.getoption("--replace-messages"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the messages of a worker."""
    for kind, texts in getattr(node, "workeroutput", {}).get("messages", {}).items():
        assert refusals.recorded is not None
        refusals.recorded[kind].update(texts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that are parametrised with a backend outside ``--backends``."""
    chosen = {name.strip() for name in config.getoption("--backends").split(",") if name.strip()}
    if not chosen:
        return
    known = {backend for item in items if (backend := _backend_of(item)) is not None}
    if known and not chosen <= known:
        raise pytest.UsageError(f"no test of backend {min(chosen - known)!r}; there are {', '.join(sorted(known))}")
    deselected = [item for item in items if _backend_of(item) not in chosen | {None}]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if item not in deselected]


def _backend_of(item: pytest.Item) -> str | None:
    """Return the name of the backend that a test is parametrised with."""
    backend = getattr(item, "callspec", None) and item.callspec.params.get("backend")  # type: ignore[attr-defined]
    return backend if isinstance(backend, str) else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the data folder next to the checkout; skip tests without it."""
    folder = Path(os.environ.get("REMAT_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no data folder at {folder} (set REMAT_SHARED)")
    return folder


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove ``COLUMNS``, which GNU readline sets where a test imports it."""
    monkeypatch.delenv("COLUMNS", raising=False)
