"""Tuning of the table of the default method on one half of a study's instances, with a report on the other half.

Optuna proposes tables. Trials are cells of a study, and the sampler depends on its seed and their results alone. So the
same call repeats the same trials, takes their results from the store, and continues where an earlier call ended.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from remat.config.faults import first_fault, shown
from remat.config.sections import Section
from remat.errors import FormatError, RematError
from remat.graphs import ComputeGraph
from remat.io.files import read_toml
from remat.solving.auto import AUTO, STAGES
from remat.solving.portfolio import Stage
from remat.studies.executors import StudyExecutor
from remat.studies.instances import Instance, InstancesSection, Words, graphs_of
from remat.studies.measures import overhead, problem_of
from remat.studies.plan import Cell, Plan
from remat.studies.running import Event, Runner
from remat.studies.stage_space import Parameter, StageSpace, table_values
from remat.studies.statistics import Duel, duel, shifted_geometric_mean
from remat.studies.store import Result, Store

if TYPE_CHECKING:
    from optuna.trial import Trial as OptunaTrial

#: Labels of the two tables that are compared.
DEFAULT, TUNED = "default", "tuned"
#: Names of the halves, which end those of their studies.
TRAINING, HELD_OUT = "training", "held-out"
#: Shift of overheads, in %.
SHIFT = 1.0
#: Factor on the other table's shifted overhead for a problem without a schedule, as in PAR10.
PENALTY = 10.0
#: Random tables before the sampler learns from results.
RANDOM = 5
#: Parts of a trial's cells after each of which it may end.
PARTS = 4
#: Largest p of the one-sided signed-rank test at which a trial that is worse than the best one ends.
PRUNE = 0.1
#: Largest p of the sign test on the other half for a table that wins.
SIGNIFICANT = 0.05


class TuneSection(Section):
    """Table ``[tune]`` of a study's file."""

    trials: Annotated[int, Field(ge=1)] = 20
    """Tables to try, in addition to the default one."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the sampler, and of the halves."""
    methods: Words = ()
    """Methods whose stages vary; default: all of the table."""


@dataclass(frozen=True)
class Trial:
    """Table that was tried on the training half.

    Attributes
    ----------
    number : int
        0 is the default table.
    table : tuple of Stage
    ratio : float
        Geometric mean, over the cells solved, of the shifted overhead relative to the default table's.
    cells, total : int
        Cells solved, and all of the half; a trial that is clearly worse than the best one ends early.
    """

    number: int
    table: tuple[Stage, ...] = field(repr=False)
    ratio: float
    cells: int
    total: int


@dataclass(frozen=True)
class Half:
    """Default and best table on one half of the instances, with all seeds.

    Attributes
    ----------
    study : str
        Name in the store.
    instances : tuple of str
    default, tuned : float or None
        Shifted geometric means of the overhead in %.
    ratio : float
        As :attr:`Trial.ratio`.
    duel : Duel
        Wins of the best table against the default one: problems whose mean ratio over seeds is below 1.
    """

    study: str
    instances: tuple[str, ...]
    default: float | None
    tuned: float | None
    ratio: float
    duel: Duel


@dataclass(frozen=True)
class Tuning:
    """Outcome of :func:`tune`.

    Attributes
    ----------
    trials : tuple of Trial
    best : Trial
        The one of the least ratio among those that solved all cells.
    halves : tuple of Half
        Training half and the other one; empty if no table is better than the default one.
    """

    trials: tuple[Trial, ...]
    best: Trial
    halves: tuple[Half, ...]

    @property
    def wins(self) -> bool:
        """True if the best table is better on the other half: a ratio below 1, and p of the sign test below 0.05."""
        return bool(self.halves) and self.halves[1].ratio < 1 and self.halves[1].duel.p < SIGNIFICANT


def halves(instances: Sequence[Instance], seed: int = 0) -> tuple[list[Instance], list[Instance]]:
    """Return the training half of instances, and the other one.

    Of two neighbours by number of ops, the one with the smaller SHA-256 of seed and name is for training.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> chains = [Instance(f"chain-{n}", unit_chain(n)) for n in (3, 4, 5, 6, 7)]
    >>> [[each.name for each in half] for half in halves(chains)]
    [['chain-4', 'chain-6', 'chain-7'], ['chain-3', 'chain-5']]
    """
    ordered = sorted(instances, key=lambda each: (len(each.graph.ops), each.name))
    training, held_out = list[Instance](), list[Instance]()
    for start in range(0, len(ordered), 2):
        pair = sorted(ordered[start : start + 2], key=lambda each: _hash(f"{seed}:{each.name}"))
        training.append(pair[0])
        held_out += pair[1:]
    return training, held_out


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Tuner:
    """Plan of a tuning.

    Parameters
    ----------
    mapping : mapping
        Content of a study's file, with a table ``tune`` instead of ``methods``. Trials take the first seed of
        ``solve``, the comparison at the end takes all.
    name : str
        Name of the file, for errors.
    folder : path
        Folder of relative paths.
    graphs : mapping of str to ComputeGraph, optional
        Instances in addition to those of the mapping.

    Raises
    ------
    RematError
        Naming the key that is wrong, or if there are fewer than two instances.
    """

    def __init__(
        self, mapping: Mapping[str, Any], name: str = "study", folder: str | os.PathLike[str] = "",
        graphs: Mapping[str, ComputeGraph] | None = None,
    ) -> None:  # fmt: skip
        self._file, self._mapping = name, {key: mapping[key] for key in mapping if key not in ("tune", "instances")}
        for key in ("methods", "tune"):
            if (key in mapping) != (key == "tune"):
                raise FormatError(f"{name}: `remat study tune` needs a table 'tune' and no 'methods'", "wrong-key", key)
        self.section = _checked(TuneSection, mapping["tune"], f"{name}: tune")
        given = _checked(InstancesSection, mapping.get("instances", {}), f"{name}: instances")
        if given.orders:
            raise FormatError(
                f"{name}: leave out instances.orders: orders of one graph would be in both halves of a tuning",
                "wrong-key",
                "orders",
            )
        listed = {**(graphs or {}), **dict(graphs_of(given, Path(folder), name))}
        self.training, self.held_out = halves([Instance(*each) for each in listed.items()], self.section.seed)
        if not self.held_out:
            raise FormatError(f"{name}: a tuning needs at least two instances", "no-instance")
        unknown = set(self.section.methods) - {stage.method for stage in STAGES}
        if unknown:
            known = ", ".join(dict.fromkeys(stage.method for stage in STAGES))
            word = min(unknown)
            raise FormatError(f"{name}: the table has no stage {word!r}; there are {known}", "wrong-key", word)
        self.space = StageSpace(STAGES, self.section.methods)
        self._default = self.plan(self.training, {DEFAULT: STAGES})
        self.name, self.threads = self._default.name, self._default.cells[0].threads

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Tuner:
        """Read a study's file with a table ``[tune]``."""
        return cls(read_toml(path), str(path), Path(path).parent)

    def plan(
        self, instances: Sequence[Instance], tables: Mapping[str, Sequence[Stage]], *, name: str = "",
        all_seeds: bool = False,
    ) -> Plan:  # fmt: skip
        """Return the plan of some tables by label on instances."""
        solve = dict(self._mapping.get("solve", {}))
        if isinstance(solve.get("seed"), list) and not all_seeds:
            solve["seed"] = solve["seed"][:1]
        methods = [
            {"method": AUTO, "label": label, "options": {} if table == STAGES else {"stages": table_values(table)}}
            for label, table in tables.items()
        ]
        given = {**self._mapping, "methods": methods, "solve": solve}
        found = Plan.from_mapping(given, self._file, graphs={each.name: each.graph for each in instances})
        problem = next(iter(found.cells)).run["config"]["problem"]
        if problem["objective"] != "least-cost" or problem["budget"] is None:
            raise FormatError(f"{self._file}: a tuning is for the least cost within budgets", "wrong-key", "least cost")
        return Plan(name or found.name, found.instances, found.cells)

    @property
    def seconds(self) -> float | None:
        """Most seconds of all solves one after another; None without a time limit."""
        trial = self._default
        both = self.plan([*self.training, *self.held_out], {DEFAULT: STAGES}, all_seeds=True)
        if trial.seconds is None or both.seconds is None:
            return None
        return (1 + self.section.trials) * trial.seconds + 2 * both.seconds


def _checked(kind: Any, given: Any, name: str) -> Any:
    """Return a section of the file, checked."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        place, fault = first_fault(error, given if isinstance(given, Mapping) else {})
        text = shown(kind, place, fault) if place else fault
        raise FormatError(f"{name}: {text}", "wrong-key", ".".join(place)) from None


class _Search:
    """One call of :func:`tune`: the study of the trials, which grows by a table at a time."""

    def __init__(
        self, tuner: Tuner, store: Store, executor: StudyExecutor, on_event: Callable[[Event], object]
    ) -> None:
        self.tuner, self.store, self.executor, self.on_event = tuner, store, executor, on_event
        self.instances: dict[str, Instance] = {}
        self.cells: dict[str, Cell] = {}
        self.trials: list[Trial] = []
        self.default: list[float | None] = []

    def solved(self, plan: Plan) -> list[Result]:
        """Run the cells of a plan that have no result; return all in order.

        Raise KeyboardInterrupt after Ctrl-C; finished cells are stored.
        """
        self.store.add(plan)
        if not Runner(self.store, plan.name, self.executor, self.on_event).run():
            raise KeyboardInterrupt
        return self.store.results(plan.name, certify=False)

    def tried(self, table: tuple[Stage, ...], should_end: Callable[[int, Sequence[float]], bool]) -> Trial:
        """Solve the cells of a table part by part, until all are solved or it should end.

        `should_end` receives the number of the first cell of a part, and the ratios of the part as logarithms.
        """
        number = len(self.trials)
        plan = self.tuner.plan(self.tuner.training, {f"table {number}" if number else DEFAULT: table})
        self.instances |= plan.instances
        found: list[float | None] = []
        logs: list[float] = []
        step = math.ceil(len(plan.cells) / PARTS) if number else len(plan.cells)
        for start in range(0, len(plan.cells), step):
            part = plan.cells[start : start + step]
            for cell in part:
                self.cells.setdefault(cell.digest, cell)  # a table may be tried twice
            results = self.solved(Plan(self.tuner.name, self.instances, tuple(self.cells.values())))
            overheads = {each.cell.digest: overhead(each) for each in results}
            found += [overheads[cell.digest] for cell in part]
            if not number:
                self.default = found
            logs += [_log_ratio(*pair) for pair in zip(found[start:], self.default[start:], strict=False)]
            if should_end(start, logs[start:]):
                break
        return Trial(number, table, math.exp(math.fsum(logs) / len(logs)), len(found), len(plan.cells))

    def compared(self, table: tuple[Stage, ...], instances: Sequence[Instance], half: str) -> Half:
        """Compare a table with the default one on a half, with all seeds; every schedule is certified again."""
        name = f"{self.tuner.name}-{half}"
        self.solved(self.tuner.plan(instances, {DEFAULT: STAGES, TUNED: table}, name=name, all_seeds=True))
        values: dict[str, dict[tuple[str, str, int], float | None]] = {DEFAULT: {}, TUNED: {}}
        for each in self.store.results(name):
            values[each.cell.method][problem_of(each)] = overhead(each)
        logs: dict[tuple[str, str], list[float]] = {}
        for key, base in values[DEFAULT].items():
            logs.setdefault(key[:2], []).append(_log_ratio(values[TUNED][key], base))
        of_problem = [math.fsum(each) / len(each) for each in logs.values()]  # all have the same seeds
        default, tuned = (
            shifted_geometric_mean([value for value in values[label].values() if value is not None], SHIFT)
            for label in (DEFAULT, TUNED)
        )
        ratio = math.exp(math.fsum(of_problem) / len(of_problem))
        names = tuple(each.name for each in instances)
        return Half(name, names, default, tuned, ratio, duel(of_problem, [0.0] * len(of_problem)))


def _log_ratio(mine: float | None, base: float | None) -> float:
    """Return the logarithm of a shifted overhead relative to another; no schedule costs :data:`PENALTY` times as much.

    Examples
    --------
    >>> round(_log_ratio(3.0, 1.0), 3), _log_ratio(None, None), round(_log_ratio(None, 1.0), 3)
    (0.693, 0.0, 2.303)
    """
    if mine is None or base is None:
        return math.log(PENALTY) * ((mine is None) - (base is None))
    return math.log((mine + SHIFT) / (base + SHIFT))


def tune(
    tuner: Tuner, store: Store, executor: StudyExecutor, *, on_event: Callable[[Event], object] = lambda _: None,
    on_trial: Callable[[Trial], object] = lambda _: None,
) -> Tuning:  # fmt: skip
    """Search for a better table on the training half, and compare the best one on both halves.

    The trials are the study ``NAME`` of the store, the comparisons ``NAME-training`` and ``NAME-held-out``.

    Parameters
    ----------
    on_event : callable
        Receives an :class:`~remat.studies.running.Event` for each finished cell.
    on_trial : callable
        Receives each :class:`Trial`.

    Raises
    ------
    RematError
        If Optuna is not installed.
    KeyboardInterrupt
        After Ctrl-C; the same call continues.
    """
    try:
        import optuna
    except ImportError:
        raise RematError(
            "tuning needs the package optuna: pip install 'remat[tune]'", "unavailable", "optuna"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search, section = _Search(tuner, store, executor, on_event), tuner.section
    with warnings.catch_warnings(category=optuna.exceptions.ExperimentalWarning, action="ignore"):
        pruner = optuna.pruners.WilcoxonPruner(p_threshold=PRUNE)
    sampler = optuna.samplers.TPESampler(seed=section.seed, n_startup_trials=RANDOM)
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    parameters = list(tuner.space.parameters())
    study.enqueue_trial({each.name: each.default for each in parameters})
    for _ in range(section.trials + 1):
        asked = study.ask()
        values = {each.name: _suggested(asked, each) for each in parameters}

        trial = search.tried(tuner.space.table(values), partial(_is_worse, asked))
        study.tell(asked, math.log(trial.ratio))  # also for one that ended early, as Optuna advises for this pruner
        search.trials.append(trial)
        on_trial(trial)
    best = min((each for each in search.trials if each.cells == each.total), key=lambda each: each.ratio)
    compared = [
        search.compared(best.table, instances, half)
        for half, instances in ((TRAINING, tuner.training), (HELD_OUT, tuner.held_out)) if best.number
    ]  # fmt: skip
    return Tuning(tuple(search.trials), best, tuple(compared))


def _is_worse(trial: OptunaTrial, first: int, logs: Sequence[float]) -> bool:
    """Report ratios of the cells from `first`; return True if the trial is clearly worse than the best one."""
    for step, value in enumerate(logs, first):
        trial.report(value, step)
    return bool(trial.should_prune())


def _suggested(trial: OptunaTrial, parameter: Parameter) -> float:
    """Return the value that Optuna proposes for a parameter."""
    return float(trial.suggest_float(parameter.name, parameter.low, parameter.high, log=parameter.key != "on"))
