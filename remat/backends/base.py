"""Interface of all solvers."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import math
import os
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import ClassVar

import numpy as np

from remat.backends.bookkeeping import Bookkeeping
from remat.backends.linear_form import FormSolve
from remat.backends.results import OnBound, OnIncumbent, RawResult, Values
from remat.errors import BackendError, ModelError
from remat.modeling import Model, PlainLinear, Record, violations
from remat.modeling.alternatives import LinearForm
from remat.modeling.naming import Labels
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.interruption import interrupted, interrupts
from remat.runtime.processes.running import LeftBehindError, run_interruptible
from remat.runtime.solve_options import SolveOptions, Status, StopReason


class AvailabilityState(StrEnum):
    """Availability of a backend on this machine."""

    READY = "ready"
    NOT_INSTALLED = "not installed"
    WRONG_VERSION = "wrong version"
    CONFLICT = "conflict"
    NO_LICENCE = "no licence"


@dataclass(frozen=True)
class Availability:
    """State of a backend on this machine, with the reason in words."""

    state: AvailabilityState
    reason: str = ""
    """Version when ready; otherwise what is wrong and what to do."""

    @property
    def ready(self) -> bool:
        """Return True if the backend can be used."""
        return self.state is AvailabilityState.READY


def wheel_availability(package: str, versions: str, install: str = "") -> Availability:
    """Return True if a Python package is installed in a suitable version, without importing it.

    Parameters
    ----------
    package : str
        Name of the package and of its module.
    versions : str
        Suitable versions as pip writes them: ``>=9.15,<9.16``. A pre-release counts as older than its release, but
        never satisfies ``<`` that release: 9.16rc1 is not ``<9.16``.
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
    def final_status(self) -> tuple[Status, StopReason, str]:
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

    See :mod:`remat.runtime.processes.children`.
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
        """Return its availability here, with the reason if not; imports nothing heavy."""

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        """Return the solvers of a family, selectable as ``name:variant``; empty for a single solver."""
        return ()

    def ready(self) -> Availability:
        """Return the availability of this variant; a failing :meth:`availability` is a conflict."""
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
            Its deadline must be checked between bounded pieces of work.
        books : Bookkeeping
            Receives solutions and bounds; its `hint` is a starting solution or None.

        Raises
        ------
        OverdueError
            If the deadline passes first.
        """
        raise NotImplementedError(f"backend {self.name!r} has neither prepare() nor solve()")

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files of models that :meth:`write` writes."""

    def write(self, model: Model, path: str | os.PathLike[str], labels: Labels) -> None:
        """Write `model` into a file for other programs, by its suffix; names of variables are made of `labels`.

        Raises
        ------
        BackendError
            If the solver's package is missing, or refuses the model.
        FormatError
            If the file cannot be written.
        ModelError
            If the format cannot express the model.
        """
        raise NotImplementedError(f"backend {self.name!r} writes no files")

    def reads_rows(self, options: SolveOptions) -> bool:
        """Return True if models reach the solver as linear rows only."""
        del options
        return self.native == {PlainLinear}

    def takes_linear_form(self, model: Model, options: SolveOptions) -> bool:
        """Return True if :meth:`solve` replaces the model's records with the formulation's own linear rows."""
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
                    said, stop, message = run.final_status()
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
