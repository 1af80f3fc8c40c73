"""Fixtures shared by all tests."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import refusals
from hypothesis import settings

# A busy machine is no failure: property tests have no deadline for one example.
settings.register_profile("remat", deadline=None, print_blob=True)
settings.load_profile("remat")

ROOT = Path(__file__).resolve().parent.parent
#: Doctests are looked for in every module, and several have the name `conftest`.
collect_ignore_glob = ["*conftest.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Signals that are ignored stay so in all that tests start: in the background of a shell Ctrl-C is one of them."""
    if config.getoption("--update-messages") or config.getoption("--replace-messages"):
        refusals.start_recording()
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: garbage is looked for among the rest only, and less often.

    With all frameworks imported, looking through them takes half the time of collecting and a sixth of that of tests.
    """
    gc.disable()
    try:
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
        help="of the conformance tests, run only those of these backends, for example cp-sat,minizinc:gecode",
    )
    parser.addoption("--update-messages", action="store_true", help="add the messages of refusals to tests/messages")
    parser.addoption("--replace-messages", action="store_true", help="put them in place of those their kinds had")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Record the messages that this run met; a worker hands its own to the run that started it."""
    if refusals.recorded is not None and (output := getattr(session.config, "workeroutput", None)) is not None:
        output["messages"] = {kind: sorted(texts) for kind, texts in refusals.recorded.items()}
    elif refusals.recorded:
        refusals.write_texts(refusals.recorded, replace=session.config.getoption("--replace-messages"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the messages that a worker met."""
    for kind, texts in getattr(node, "workeroutput", {}).get("messages", {}).items():
        assert refusals.recorded is not None
        refusals.recorded[kind].update(texts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``--backends``: leave out what is parametrised with another backend."""
    chosen = {name.strip() for name in config.getoption("--backends").split(",") if name.strip()}
    if not chosen:
        return
    there = {_backend_of(item) for item in items} - {None}
    if there and not chosen <= there:
        raise pytest.UsageError(f"no test of backend {min(chosen - there)!r}; there are {', '.join(sorted(there))}")
    left_out = [item for item in items if _backend_of(item) not in chosen | {None}]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _backend_of(item: pytest.Item) -> str | None:
    """The name of the backend that a test is parametrised with."""
    backend = getattr(item, "callspec", None) and item.callspec.params.get("backend")  # type: ignore[attr-defined]
    return backend if isinstance(backend, str) else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The data folder beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("REMAT_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no data folder at {folder} (set REMAT_SHARED)")
    return folder
