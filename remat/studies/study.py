"""A study: its plan, its store, and what to do with both."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from remat.graphs import ComputeGraph
from remat.studies.executors import StudyExecutor, make_executor
from remat.studies.export import export, to_frame
from remat.studies.plan import Cell, Plan
from remat.studies.running import Event, Runner
from remat.studies.store import DEFAULT_URL, Result, Store

if TYPE_CHECKING:
    import pandas

    from remat.studies.report import Report


class Study:
    """Instances × problems × methods × seeds, solved into a database.

    Parameters
    ----------
    plan : Plan
        Its cells are added to the store; results of cells already there are kept.
    store : Store or str
        Open store, or its URL.

    Raises
    ------
    RematError
        If the store cannot be opened.

    Examples
    --------
    >>> study = Study.from_mapping({
    ...     "name": "chains",
    ...     "instances": {"generate": [{"generator": "unit-chain", "n": [4, 6]}]},
    ...     "problem": {"budget": "80%"},
    ...     "methods": [{"method": "greedy"}],
    ...     "solve": {"time_limit": 5},
    ... }, store="sqlite://")
    >>> study.run("processes:1")
    True
    >>> list(study.to_frame()["cost"])
    [11, 15]
    """

    def __init__(self, plan: Plan, store: Store | str = DEFAULT_URL) -> None:
        self.store = Store(store) if isinstance(store, str) else store
        self.name = plan.name
        self.added = self.store.add(plan)
        """Number of cells that the store did not have."""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], store: Store | str = DEFAULT_URL) -> Study:
        """Return the study of a TOML file; see :meth:`Plan.from_file`."""
        return cls(Plan.from_file(path), store)

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any], store: Store | str = DEFAULT_URL,
        graphs: Mapping[str, ComputeGraph] | None = None,
    ) -> Study:  # fmt: skip
        """Return the study of a mapping, and of `graphs` in memory; see :meth:`Plan.from_mapping`."""
        return cls(Plan.from_mapping(mapping, graphs=graphs), store)

    @classmethod
    def resume(cls, name: str, store: Store | str = DEFAULT_URL) -> Study:
        """Return a study of the store, without its plan; :meth:`run` solves the cells without a result.

        Raises
        ------
        RematError
            If the store has no such study.
        """
        study = cls.__new__(cls)
        study.store = Store.existing(store) if isinstance(store, str) else store
        study.name, study.added = name, 0
        study.counts()
        return study

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {self.store.url.render_as_string()})"

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def run(
        self, executor: StudyExecutor | str = "processes", *, retry_failed: bool = False,
        on_event: Callable[[Event], object] = lambda _: None,
    ) -> bool:  # fmt: skip
        """Solve the cells without a result; return False after Ctrl-C, which keeps all finished ones.

        Parameters
        ----------
        executor : StudyExecutor or str
            As :func:`remat.studies.executors.make_executor` reads it.
        retry_failed : bool
            Solve failed cells again.
        on_event : callable
            Receives an :class:`Event` for each finished cell.
        """
        if retry_failed:
            self.store.retry(self.name)
        if not isinstance(executor, str):
            return Runner(self.store, self.name, executor, on_event).run()
        threads = max(cell.threads for cell in self.cells())
        with make_executor(executor, threads) as made:
            return Runner(self.store, self.name, made, on_event).run()

    def cells(self) -> list[Cell]:
        """Return all cells in order."""
        return [result.cell for result in self.results(certify=False)]

    def counts(self) -> dict[str, int]:
        """Return the number of cells by state: ``waiting``, ``running``, ``done``, ``failed``."""
        return self.store.counts(self.name)

    def results(self, *, certify: bool = True) -> list[Result]:
        """Return the results of all cells in order; see :meth:`Store.results`."""
        return self.store.results(self.name, certify=certify)

    def to_frame(self) -> pandas.DataFrame:
        """Return a data frame with a row for each cell. Every schedule is certified again."""
        return to_frame(self.results())

    def export(self, *paths: str | os.PathLike[str]) -> None:
        """Write the results to files (.csv, .json, .parquet). Every schedule is certified again."""
        results = self.results()
        for path in paths:
            export(results, path)

    def report(self, *, pages: bool = True) -> Report:
        """Return the report, with the schedules' pages unless `pages` is False. Every schedule is certified again."""
        from remat.studies.report import Report

        return Report(self.name, self.results(), self.store, pages=pages)

    def remove(self) -> int:
        """Remove the study from the store, with results that no other study shares; return their number."""
        return self.store.remove(self.name)
