"""Tuning of the table of the default method on one half of a study."""

import math
import tomllib
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from shell import ok

pytest.importorskip("sqlalchemy")
pytest.importorskip("optuna")

from remat.config import Config, make_options
from remat.solving.auto import STAGES
from remat.solving.portfolio import Stage
from remat.studies.executors import StudyExecutor
from remat.studies.plan import Plan
from remat.studies.solving import Outcome, Task
from remat.studies.stage_space import StageSpace, table_toml, table_values
from remat.studies.store import Store
from remat.studies.tuning import Tuner, tune

FILE: dict[str, Any] = {
    "name": "table",
    "instances": {"generate": [{"generator": "unit-chain", "n": [4, 5, 6, 7, 8, 9, 10, 11]}]},
    "problem": {"budget": ["90%", "80%"]},
    "solve": {"time_limit": 1, "seed": [0, 1]},
    "tune": {"trials": 12, "methods": ["annealing", "turns"]},
}


class Judge(StudyExecutor):
    """Gives the more overhead the farther the share of the longer annealing stage is from `best`."""

    slots = 4

    def __init__(self, best: float) -> None:
        self.best, self.cells = best, 0

    def submit(self, task: Task) -> Future[Outcome]:
        stages = make_options("auto", task.run["options"]).stages or STAGES
        shares = [stage.share for stage in stages if stage.method == "annealing" and not stage.when]
        row: dict[str, Any] = {"status": "unknown", "message": "", "total_seconds": 0.0}
        if shares:
            row |= {"status": "feasible", "overhead_percent": 5 * abs(math.log(shares[0] / self.best))}
        self.cells += 1
        future: Future[Outcome] = Future()
        future.set_result(Outcome(row))
        return future

    def close(self) -> None:
        pass


@pytest.mark.slow  # ten seconds of tables and tests of ranks
def test_better_table_is_found_and_wins_on_the_other_half(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/study.db") as store:
        found = tune(Tuner(FILE), store, judge := Judge(0.6))
        share = next(stage.share for stage in found.best.table if stage.method == "annealing" and not stage.when)
        assert 0.3 < share <= 0.8
        assert found.trials[0].table == STAGES
        assert found.trials[0].ratio == 1
        assert any(trial.cells < trial.total for trial in found.trials)  # a worse one ends early
        training, held_out = found.halves
        assert len(training.instances) == len(held_out.instances) == 4
        assert not set(training.instances) & set(held_out.instances)
        assert held_out.ratio == pytest.approx(found.best.ratio)
        assert (held_out.duel.wins, held_out.duel.losses) == (8, 0)  # 4 instances, 2 budgets
        assert found.wins
        assert judge.cells == store.counts("table")["done"] + 2 * 32 - 2 * 8  # both tables have solved 8 before

        again = tune(Tuner(FILE), store, fresh := Judge(0.6))
        assert fresh.cells == 0
        assert again == found
        more = Tuner({**FILE, "tune": {**FILE["tune"], "trials": 13}})
        assert tune(more, store, fresh).trials[: len(found.trials)] == found.trials


def test_default_table_that_is_best_is_kept(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/study.db") as store:
        chains = {"generate": [{"generator": "unit-chain", "n": [4, 5, 6, 7]}]}
        file = {**FILE, "instances": chains, "tune": {"trials": 4, "methods": ["annealing"]}}
        found = tune(Tuner(file), store, Judge(0.2))
        assert found.best.number == 0
        assert found.halves == ()
        assert not found.wins


def test_tables_are_written_as_configurations_read_them() -> None:
    given = tomllib.loads(table_toml(STAGES))
    config = Config.from_mapping({"problem": {"graph": "-"}, **given})
    assert config.options_of("auto").stages == STAGES
    assert make_options("auto", {"stages": table_values(STAGES)}).stages == STAGES
    space = StageSpace(STAGES)
    assert space.table({each.name: each.default for each in space.parameters()}) == STAGES
    changed = space.table({each.name: each.low for each in space.parameters()})
    assert [stage.method for stage in changed] == ["turns", "turns"]
    assert changed[-1].options == {"annealing": 0.15, "lns": 0.05, "bounds": 0.05}
    longest = StageSpace((Stage("drops", 0.15, seconds_per_op=0.02),)).table({"1 drops share": 0.6, "1 drops limit": 4})
    assert longest == (Stage("drops", 0.6, seconds_per_op=0.08),)


@pytest.mark.parametrize(("culprit", "changes"), [
    ("methods", {"methods": [{"method": "greedy"}]}),
    ("trials", {"tune": {"trials": 0}}),
    ("drop", {"tune": {"methods": ["drop"]}}),
    ("orders", {"instances": {**FILE["instances"], "orders": 2}}),
    ("instances", {"instances": {"generate": [{"generator": "unit-chain", "n": 4}]}}),
    ("least cost", {"problem": {"order": "free", "objective": "least-peak"}}),
])  # fmt: skip
def test_tunings_are_refused(culprit: str, changes: dict[str, Any]) -> None:
    with refused("format.no-instance" if culprit == "instances" else "format.wrong-key", culprit=culprit):
        Tuner({**FILE, **changes})


def test_study_with_table_tune_is_refused_elsewhere() -> None:
    with refused("format.wrong-key", culprit="tune"):
        Plan.from_mapping(FILE)


@pytest.mark.slow
def test_shell_tunes_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.toml").write_text("""
        name = "table"
        clock = "processor"
        instances = {generate = [{generator = "layered", n = [30, 34], seed = 1}]}
        problem = {budget = "80%"}
        solve = {time_limit = 0.3}
        tune = {trials = 2}
    """)
    assert "held out: layered n=" in ok("study tune table.toml --dry-run").out
    first = ok("study tune table.toml --executor processes:1 -o tuned.toml -q", code=1)
    assert first.out == ok("study tune table.toml --executor processes:1 -q", code=1).out
    assert "table: 3 of 3 cells finished" in ok("study status").out
    assert Config.from_mapping({"problem": {"graph": "-"}, **tomllib.loads(Path("tuned.toml").read_text())})
