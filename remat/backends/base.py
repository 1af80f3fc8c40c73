"""Interface of all solvers."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

import numpy as np

from remat.backends.bookkeeping import Bookkeeping
from remat.backends.linear_form import FormSolve
from remat.backends.processes.running import LeftBehindError, run_interruptible
from remat.backends.results import Incumbent, OnBound, OnIncumbent, RawResult, Status, StopReason, Values
from remat.deadline import Deadline, OverdueError
from remat.errors import BackendError, ModelError, ProblemError
from remat.interruption import interrupted, interrupts
from remat.io.sizes import memory_bytes
from remat.io.text import short
from remat.modeling import Model, PlainLinear, Record, violations
from remat.modeling.linear_form import LinearForm

__all__ = [
    "DEFAULT_GAP", "DEFAULT_OPTIONS", "MOST", "STARTS", "Availability", "AvailabilityState", "Backend", "Incumbent",
    "OnBound", "OnIncumbent", "RawResult", "Run", "SolveOptions", "Status", "StopReason", "Values", "checked_hint",
    "wheel_availability",
]  # fmt: skip


class AvailabilityState(StrEnum):
    """Availability of a backend on this machine."""

    READY = "ready"
    NOT_INSTALLED = "not installed"
    WRONG_VERSION = "wrong version"
    CONFLICT = "conflict"
    NO_LICENCE = "no licence"


@dataclass(frozen=True)
class Availability:
    """State of a backend on this machine, with the reason in words.

    Attributes
    ----------
    state : AvailabilityState
    reason : str
        Version when ready; otherwise what is wrong and what to do.
    """

    state: AvailabilityState
    reason: str = ""

    @property
    def ready(self) -> bool:
        """Return whether the backend can be used."""
        return self.state is AvailabilityState.READY


def wheel_availability(package: str, versions: str, install: str = "") -> Availability:
    """Return whether a Python package is installed in a suitable version, without importing it.

    Parameters
    ----------
    package : str
        Name of the package and of its module.
    versions : str
        Suitable versions as pip writes them: ``>=9.15,<9.16``. A pre-release counts as older than its release, and
        as none of the releases below it: 9.16rc1 is not ``<9.16``.
    install : str, optional
        Argument for ``pip install``; default: the package in these versions.

    Returns
    -------
    Availability
        Its reason is ``package version`` if ready.

    Examples
    --------
    >>> wheel_availability("numpy", ">=1").ready
    True
    >>> wheel_availability("numpy", "<1").state
    <AvailabilityState.WRONG_VERSION: 'wrong version'>
    >>> wheel_availability("no_such_package", ">=1").reason
    "no_such_package is not installed: pip install 'no_such_package>=1'"
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    remedy = f"pip install '{install or package + versions}'"
    if importlib.util.find_spec(package) is None:
        return Availability(AvailabilityState.NOT_INSTALLED, f"{package} is not installed: {remedy}")
    try:
        version = importlib.metadata.version(package)
        serves = SpecifierSet(versions).contains(version, prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        reason = f"{package} can be imported, but was not installed as a package, so its version is unknown: {remedy}"
        return Availability(AvailabilityState.WRONG_VERSION, reason)
    except InvalidVersion:
        serves = False
    if serves:
        return Availability(AvailabilityState.READY, f"{package} {version}")
    reason = f"{package} {version} is installed, but only {versions} is known to be right: {remedy}"
    return Availability(AvailabilityState.WRONG_VERSION, reason)


#: Largest seed and largest number of threads that every solver accepts.
MOST = 2**31 - 1
#: Default relative gap at which a solve stops: 0.0001 %.
DEFAULT_GAP = 1e-6
#: Words for the start of a search (:attr:`SolveOptions.start`).
STARTS = ("auto", "none", "alone")


@dataclass(frozen=True)
class SolveOptions:
    """Options of everything that solves: methods, heuristics, bounds, backends, child processes.

    Attributes
    ----------
    deadline : Deadline
        Covers build and solve. :func:`remat.solve` sets it from `stop`.
    threads : int or None
        None: all CPUs that this process may use.
    seed : int
        Seed of all random choices.
    relative_gap : float
        Stop when (objective − bound) / objective is at most this; 0: prove optimality.
    log : callable taking a line of text, or None
        Receives the solver's own log.
    solver : mapping
        Passed to the solver untouched (names as in its manual).
    isolate : bool
        Run every solver in a process of its own (:class:`remat.backends.processes.isolated.Isolated`), which is killed
        if it misses the deadline; its solutions so far are kept. Backends themselves ignore it.
    memory_limit : int, str or None
        Bytes that such a process may hold (``"4GiB"``); implies `isolate`. Stored as a number of bytes.
    start : str or Schedule
        Start of a formulation's search if no warm start is given. ``"auto"``: the schedule of a heuristic.
        ``"none"``: no start, so that a result shows what formulation and solver achieve alone. ``"alone"``: likewise,
        and for the least cost not even the reference order is an answer, so that a result shows the method's own
        schedule. A schedule is a warm start. Backends ignore it.

    Raises
    ------
    ProblemError
        If an option is out of range; it names the option.

    Examples
    --------
    >>> SolveOptions(threads=2, memory_limit="4GiB").memory_limit
    4294967296
    >>> SolveOptions(threads=0)
    Traceback (most recent call last):
    remat.errors.ProblemError: threads must be a whole number from 1, not 0
    """

    deadline: Deadline = field(default_factory=Deadline)
    threads: int | None = None
    seed: int = 0
    relative_gap: float = DEFAULT_GAP
    log: Callable[[str], None] | None = None
    solver: Mapping[str, Any] = field(default_factory=dict)
    isolate: bool = False
    memory_limit: int | str | None = None
    start: Any = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.deadline, Deadline):
            raise ProblemError(
                f"the deadline must be a Deadline, not {self.deadline!r}; `stop` takes seconds", "bad-deadline"
            )
        for what, value, least in (("threads", self.threads, 1), ("seed", self.seed, 0)):
            if value is None and what == "threads":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ProblemError(f"{what} must be a whole number from {least}, not {short(value)}", "number")
            if value > MOST:
                raise ProblemError(
                    f"{what} must be at most {MOST:,}, which all solvers take, not {short(value)}", "large-seed"
                )
        gap = self.relative_gap
        if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 <= gap < 1:
            raise ProblemError(f"the relative gap must be at least 0 and below 1, not {gap!r}", "bad-gap")
        if self.log is not None and not callable(self.log):
            raise ProblemError(f"the log must be a callable that takes a line of text, not {self.log!r}", "bad-log")
        if not isinstance(self.solver, Mapping):
            raise ProblemError(f"solver options must be a mapping of names to values, not {self.solver!r}", "solver")
        object.__setattr__(self, "solver", dict(self.solver))
        if self.memory_limit is not None:
            object.__setattr__(self, "memory_limit", memory_bytes(self.memory_limit))
            object.__setattr__(self, "isolate", True)
        if isinstance(self.start, str) and self.start not in STARTS:
            raise ProblemError(
                f"start {self.start!r} is none of 'auto', 'none' and 'alone'; a schedule itself is taken, too",
                "bad-start",
            )

    @property
    def from_nothing(self) -> bool:
        """Return True if no other method makes a start."""
        return isinstance(self.start, str) and self.start in ("none", "alone")

    @property
    def memory_bytes(self) -> int | None:
        """Memory limit in bytes; None: no limit."""
        return self.memory_limit if isinstance(self.memory_limit, int) else None


#: Defaults of all options.
DEFAULT_OPTIONS = SolveOptions()


def checked_hint(hint: Values, model: Model) -> Values:
    """Return `hint` as an array.

    Raises
    ------
    ModelError
        If its shape is not (variables of `model`,).
    """
    values = np.asarray(hint, dtype=np.float64)
    if values.shape != (model.num_vars,):
        raise ModelError(f"the hint has shape {values.shape}, but model {model.name!r} has {model.num_vars} variables")
    return values


class Run(ABC):
    """One solve, ready to run; made by :meth:`Backend.prepare`."""

    keeps_deadline: ClassVar[bool] = False
    """True if :meth:`run` returns at the deadline and after Ctrl-C even when :meth:`stop` is not called.

    It then runs in the caller's thread."""

    seconds: tuple[float, float] | None = None
    """Seconds of building and of solving, if the run measures them; None: the caller does."""

    @abstractmethod
    def run(self) -> None:
        """Solve, in a separate thread unless :attr:`keeps_deadline`; report solutions and bounds to the books."""

    @abstractmethod
    def stop(self) -> None:
        """Ask :meth:`run` to return soon; callable from any thread, repeatedly."""

    @abstractmethod
    def last_words(self) -> tuple[Status, StopReason, str]:
        """Return the solver's final status, its stop reason if nothing is proved, and a message.

        Not called if a callback failed, or if the solver missed the deadline and was abandoned.
        """

    def close(self) -> None:  # noqa: B027  (most hold nothing)
        """Release resources; always called."""


class Backend(ABC):
    """A solver, or a family of solvers, behind one interface; independent of graphs."""

    name: ClassVar[str]
    native: ClassVar[frozenset[type[Record]]]
    """Kinds of records that it accepts directly; bridges rewrite the others."""

    nonzero_bytes: ClassVar[int] = 300
    """Approximate memory of model and solver for each non-zero, in bytes."""

    own_process: ClassVar[bool] = False
    """True if it always runs its solver in a separate process and keeps `SolveOptions.memory_limit` there."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that a child process imports before it is forked.

    See :mod:`remat.backends.processes.children`.
    """

    variant: str = ""
    """Solver of a family; empty for a single solver."""

    def __init__(self, variant: str = "") -> None:
        self.variant = variant
        if variant and not self.variants():
            raise BackendError(
                f"backend {self.name!r} is a single solver, so there is no {self.full_name!r}", "no-variants"
            )

    def __repr__(self) -> str:  # the same in every process: resumed experiments compare it
        return f"{type(self).__qualname__}({self.full_name!r})"

    @property
    def full_name(self) -> str:
        """Name in configurations and results: ``name`` or ``name:variant``."""
        return f"{self.name}:{self.variant}" if self.variant else self.name

    @classmethod
    @abstractmethod
    def availability(cls) -> Availability:
        """Return whether it can be used here, and why not; imports nothing heavy."""

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        """Return the solvers of a family, selectable as ``name:variant``; empty for a single solver."""
        return ()

    def ready(self) -> Availability:
        """Return whether this variant can be used, and why not; a failing :meth:`availability` is a conflict."""
        try:
            return self.availability()
        except Exception as error:
            fault = " ".join(f"{type(error).__name__}: {error}".split())
            return Availability(AvailabilityState.CONFLICT, f"it fails to say whether it can be used: {fault}")

    def check_ready(self) -> None:
        """Require that this variant is available.

        Raises
        ------
        BackendError
            If it is not; the message has the reason.
        """
        state = self.ready()
        if not state.ready:
            raise BackendError(f"backend {self.full_name!r} cannot be used: {state.reason}", "unavailable", self.name)

    def prepare(self, model: Model, options: SolveOptions, books: Bookkeeping) -> Run:
        """Translate the model for the solver; :meth:`solve` calls this and the run's methods.

        Parameters
        ----------
        options : SolveOptions
            Check the deadline between bounded pieces of work.
        books : Bookkeeping
            Receives solutions and bounds; its `hint` is a starting solution or None.

        Raises
        ------
        OverdueError
            If the deadline passes first.
        """
        raise NotImplementedError(f"backend {self.name!r} has neither prepare() nor solve()")

    def reads_rows(self, options: SolveOptions) -> bool:
        """Return whether models reach the solver as linear rows only."""
        del options
        return self.native == {PlainLinear}

    def takes_linear_form(self, model: Model, options: SolveOptions) -> bool:
        """Return whether :meth:`solve` replaces the model's records with the formulation's own linear rows."""
        return LinearForm.name in model.overrides and self.reads_rows(options)

    def _linear_form(self, model: Model, options: SolveOptions) -> LinearForm | None:
        """Return the linear form to solve; None at the deadline, which the records would miss too."""
        if not self.takes_linear_form(model, options):
            return None
        with contextlib.suppress(OverdueError):
            form: LinearForm = model.overrides[LinearForm.name]()
            return form
        return None

    def solve(
        self,
        model: Model,
        options: SolveOptions,
        hint: Values | None = None,
        on_incumbent: OnIncumbent | None = None,
        on_bound: OnBound | None = None,
    ) -> RawResult:
        """Minimise `model`.

        Parameters
        ----------
        hint : float64 array, shape (variables of the model,), optional
            A complete starting solution, with NaN for unknown values. If it satisfies the model it is the first
            incumbent, and is kept even if the solver ignores it.

        Raises
        ------
        ModelError
            If the model has a record that neither the solver nor a bridge accepts.
        BackendError
            If the solver is not available or crashes.
        """
        self.check_ready()
        began, deadline = time.monotonic(), options.deadline
        if (form := self._linear_form(model, options)) is not None:
            translated = FormSolve(model, form, time.monotonic() - began)
            given = None if hint is None else checked_hint(hint, model)
            return translated.run(partial(self.solve, form.model, options), given, on_incumbent, on_bound)
        books = Bookkeeping(self.full_name, model, deadline, on_incumbent, on_bound)
        if hint is not None:
            books.hint = checked_hint(hint, model)
            if not violations(model, books.hint):
                books.found(books.hint.copy())
        said, stop, message = Status.UNKNOWN, None, ""
        run, built = None, math.inf
        try:
            run = self.prepare(model, options, books)
            books.stop = run.stop
            built = time.monotonic()
            if not books.stop_reason and not deadline.expired:
                if _followed(run, books, deadline):
                    books.stop_reason = books.stop_reason or StopReason.INTERRUPTED
                if books.failure is None:
                    said, stop, message = run.last_words()
        except LeftBehindError as late:
            books.closed = True
            stop = StopReason.INTERRUPTED if late.interrupted else StopReason.DEADLINE
        except OverdueError:
            pass
        finally:
            if run is not None:
                run.close()
        stop = stop or books.stop_reason or (StopReason.INTERRUPTED if interrupted() else StopReason.DEADLINE)
        ended = time.monotonic()
        built = min(built, ended)
        verdict = books.conclude(said, stop, relative_gap=options.relative_gap)
        seconds = (built - began, ended - built) if run is None or run.seconds is None else run.seconds
        return books.result(verdict, seconds, message)


def _followed(run: Run, books: Bookkeeping, deadline: Deadline) -> bool:
    """Run to the end; return whether Ctrl-C stopped it."""
    if not run.keeps_deadline:
        return run_interruptible(run.run, books.request_stop, deadline)
    with interrupts():
        try:
            run.run()
        except KeyboardInterrupt:  # the second Ctrl-C
            return True
        return interrupted()
