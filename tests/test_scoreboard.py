"""Scoreboard: certified records, replaced only by strictly better ones."""

import json
import sys
from pathlib import Path

import pytest
from refusals import check_text, refused

from remat import Schedule
from remat.errors import FormatError, ProblemError
from remat.graphs import ComputeGraph
from remat.graphs.families import unit_chain
from remat.problem.scope import Scope
from remat.schedule import OrderRule
from remat.schedule.io import write_schedule

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    from scoreboard import cli, records, runs, suite, table
    from scoreboard.board import BEST, Board, InstanceRecords
    from scoreboard.published import PUBLISHED, published
finally:
    sys.path.remove(str(BENCHMARKS))

Capture = pytest.CaptureFixture[str]
ANY, KEPT = Scope(OrderRule.FREE, staged=False), Scope(OrderRule.FIXED, staged=False)


# -- records of the repository -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [pytest.param(one.name, marks=[pytest.mark.shared] if one.path else []) for one in suite.INSTANCES.values()],
)
def test_records_are_certified(name: str, request: pytest.FixtureRequest) -> None:
    if suite.INSTANCES[name].path:
        request.getfixturevalue("shared")  # skips without the data folder
    graph, board = suite.INSTANCES[name].make(), Board()
    cells = [suite.Cell(name, order, percent) for order in suite.ORDERS for percent in suite.BUDGETS]
    known = [record for cell in cells if (record := board.read(cell)) is not None]
    assert len(known) in (0, 10)
    for record in known:
        certificate = records.certify(record, graph, str(board.path(record.cell)))
        assert record.budget == graph.reference_peak * record.percent // 100
        assert (certificate is None) is (record.found is None)


def test_table_matches_the_records() -> None:
    known = Board().records()
    assert len({record.cell for record in known}) == len(known) >= 50
    assert (BEST.parent / "table.json").read_text(encoding="utf-8") == table.to_json(known)
    assert (BEST.parent / "table.md").read_text(encoding="utf-8") == table.to_markdown(known)


def test_larger_budgets_and_free_orders_cost_no_more() -> None:
    known = {record.cell: record for record in Board().records()}
    for cell, record in known.items():
        for other, easier in known.items():
            same = other.instance == cell.instance and other.order in (cell.order, "free")
            if same and other.percent >= cell.percent:
                assert record.found is None or (easier.found is not None and easier.found.cost <= record.found.cost)
                if other.order == cell.order:
                    assert record.bound is None or (easier.bound is not None and easier.bound <= record.bound)


# -- a separate board --------------------------------------------------------------------------------------------------

#: Schedules of a training chain of 9 ops with a reference peak of 6: optimal within 5 bytes, and with one op more.
CHEAP = ("f0", "f1", "f2", "f3", "loss", "g3", "g2", "g1", "f0", "g0")
DEAR = (*CHEAP[:-1], "f0", "g0")
#: The same cost as DEAR, within 4 bytes.
LEAN = ("f0", "f1", "f2", "f3", "loss", "g3", "g2", "f0", "f1", "g1", "g0")


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstanceRecords:
    chain = suite.Instance("layered-12", lambda: unit_chain(4))
    monkeypatch.setitem(suite.INSTANCES, "layered-12", chain)
    return InstanceRecords(Board(tmp_path / "best"), chain)


def steps(graph: ComputeGraph, names: tuple[str, ...]) -> Schedule:
    return Schedule.of_computes(graph, [graph.op_index[name] for name in names])


def test_only_better_schedules_replace_records(instance: InstanceRecords) -> None:
    dear, cheap = steps(instance.graph, DEAR), steps(instance.graph, CHEAP)
    assert {(cell.order, cell.percent) for cell in instance.offer(dear, "a")} == {("fixed", 90), ("free", 90)}
    path = instance.board.path(suite.Cell("layered-12", "free", 90))
    first = path.read_bytes()
    assert instance.offer(dear, "b") == []
    assert path.read_bytes() == first
    assert len(instance.offer(cheap, "c", 1.26, 60.0, 7)) == 2
    best = instance.record("free", 90)
    assert best.found == records.Found(cost=10, peak=5, method="c", seconds=1.3, limit=60.0, seed=7, ops="0-7 0 8")
    second = path.read_bytes()
    assert instance.offer(dear, "d") == instance.offer(Schedule.reference(instance.graph), "e") == []
    assert path.read_bytes() == second


def test_lower_peak_at_equal_cost_is_better(instance: InstanceRecords) -> None:
    for computes, found in ((DEAR, (11, 5)), (LEAN, (11, 4)), (DEAR, (11, 4)), (CHEAP, (10, 5)), (LEAN, (10, 5))):
        instance.offer(steps(instance.graph, computes), "a")
        best = instance.record("free", 90).found
        assert (best.cost, best.peak) == found


def test_bounds_rise_at_all_cells_they_cover(instance: InstanceRecords) -> None:
    def bounds(order: str) -> list[int | None]:
        return [instance.record(order, percent).bound for percent in suite.BUDGETS]

    assert bounds("fixed") == [9] * 5
    assert len(instance.offer_bound(11, "a", KEPT, 4)) == 4
    assert (bounds("fixed"), bounds("free")) == ([9, 11, 11, 11, 11], [9] * 5)
    assert len(instance.offer_bound(10, "b", ANY, 5)) == 6
    assert (bounds("fixed"), bounds("free")) == ([10, 11, 11, 11, 11], [10] * 5)
    assert instance.offer_bound(10, "c", ANY, 5) == []
    assert len(instance.offer_bound(11, "d", ANY, 3)) == 4
    assert [instance.record("fixed", 50).bound_kind, instance.record("fixed", 50).bound_order] == ["d", "free"]
    staged, twice = Scope(OrderRule.FREE, staged=True), Scope(OrderRule.FREE, False, 2)
    assert instance.offer_bound(99, "e", staged, 5) == instance.offer_bound(99, "f", twice, 5) == []
    assert {cell.percent for cell in instance.offer_bound(None, "g", ANY, 3)} == {60, 50}
    assert bounds("free") == [10, 10, 10, None, None]
    assert instance.offer_bound(12, "h", ANY, 3) == []


def test_contradicted_bound_is_refused(instance: InstanceRecords) -> None:
    instance.offer(steps(instance.graph, CHEAP), "a")
    path = instance.board.path(suite.Cell("layered-12", "fixed", 90))
    before = path.read_bytes()
    with refused("scoreboard.contradiction", FormatError):
        instance.offer_bound(11, "b", ANY, 5)
    with refused("scoreboard.contradiction", FormatError):
        instance.offer_bound(None, "c", ANY, 5)
    assert path.read_bytes() == before


def _change(**values: object):
    def change(text: str) -> str:
        content = json.loads(text)
        for key, value in values.items():
            (content["found"] if key in content["found"] else content)[key] = value
        return json.dumps(content, indent=1) + "\n"

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text[:-1],
        lambda text: text.replace("\n ", "\n"),
        lambda text: "[]",
        lambda text: "",
        *(_change(**{key: value}) for key, value in (
            ("version", 2), ("more", 1), ("cost", 9), ("cost", "10"), ("peak", 4), ("budget", 6), ("percent", 80),
            ("graph_digest", "0" * 64), ("instance", "vgg16"), ("order", "any"), ("bound", 11), ("bound", 8),
            ("bound", None), ("bound_order", "fixed"), ("seconds", -1),
        )),
        *(_change(ops=ops) for ops in (
            "0-8", "0-7 8 0", "0-6 8 7", "0-7", "0-9", "0-7 x", "0-7  8", " ".join(["0-8"] * 2000),
        )),
    ],
)  # fmt: skip
def test_damaged_records_are_refused(instance: InstanceRecords, change) -> None:
    instance.offer(steps(instance.graph, CHEAP), "a")
    path = instance.board.path(suite.Cell("layered-12", "free", 90))
    changed = change(path.read_text(encoding="utf-8"))
    assert changed != path.read_text(encoding="utf-8")
    path.write_text(changed, encoding="utf-8")
    with refused("scoreboard.damaged-record", FormatError, culprit=f"{path}"):
        instance.record("free", 90)
    with pytest.raises(FormatError):
        instance.offer(steps(instance.graph, CHEAP), "b")
    assert path.read_text(encoding="utf-8") == changed


def test_unknown_files_are_refused(instance: InstanceRecords) -> None:
    instance.offer(steps(instance.graph, CHEAP), "a")
    (instance.board.folder / "layered-12" / "free-85.json").write_text("{}", encoding="utf-8")
    with refused("scoreboard.strange-file", culprit="free-85.json"):
        instance.board.records()


# -- the program -----------------------------------------------------------------------------------------------------


def run(instance: InstanceRecords, *words: object) -> int:
    return cli.main(["--folder", str(instance.board.folder), *map(str, words)])


def test_runs_fill_the_board_and_are_not_repeated(instance: InstanceRecords, tmp_path: Path, capsys: Capture) -> None:
    log = tmp_path / "log.jsonl"
    words = ["run", "--suite", "layered-12", "--methods", "exhaustive,greedy", "--budgets", "90,60", "--seconds", "9"]
    assert run(instance, *words, "--log", log) == 0
    assert "8 runs to do" in capsys.readouterr().out
    assert [(instance.record(o, 90).found.cost, instance.record(o, 90).closed) for o in suite.ORDERS] == [
        (10, True)
    ] * 2
    assert instance.record("free", 60).found.cost == 15
    before = log.read_bytes()
    assert before.count(b"\n") == 8
    assert run(instance, *words, "--log", log) == 0
    assert "0 of 8 runs to do" in capsys.readouterr().out
    assert log.read_bytes() == before
    assert run(instance, *words, "--log", log, "--again") == 0
    assert "0 of 8 runs to do" in capsys.readouterr().out  # all cells are proved
    assert run(instance, "check") == 0
    log.write_bytes(before[:-10])  # a run truncated while it was logged
    assert run(instance, *words, "--log", log) == 0
    assert log.read_bytes() == b"".join(line + b"\n" for line in before.splitlines()[:7])


def test_ctrl_c_keeps_finished_runs(instance: InstanceRecords, tmp_path: Path, monkeypatch, capsys: Capture) -> None:
    genuine, calls = runs.perform, []

    def perform(task, folder):
        calls.append(task)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return genuine(task, folder)

    monkeypatch.setattr(runs, "perform", perform)
    log = tmp_path / "log.jsonl"
    words = ["run", "--suite", "layered-12", "--methods", "exhaustive", "--orders", "free", "--log", log]
    assert run(instance, *words) == 130
    assert "interrupted; what is done is kept" in capsys.readouterr().err
    assert log.read_bytes().count(b"\n") == 1
    assert instance.record("free", 90).closed
    assert run(instance, "check") == 0
    monkeypatch.setattr(runs, "perform", genuine)
    assert run(instance, *words) == 0
    assert "4 of 5 runs to do" in capsys.readouterr().out


@pytest.mark.slow
def test_two_parallel_jobs(instance: InstanceRecords, tmp_path: Path, monkeypatch) -> None:
    """Child processes use the real graph."""
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    genuine = InstanceRecords(instance.board, suite.INSTANCES["layered-12"])
    words = ["--methods", "exhaustive", "--budgets", "90", "--jobs", "2", "--log", tmp_path / "log"]
    assert run(genuine, "run", "--suite", "layered-12", *words) == 0
    assert [genuine.record(order, 90).bound for order in suite.ORDERS] == [None, None]


def test_update_accepts_only_better_schedules(instance: InstanceRecords, tmp_path: Path, capsys: Capture) -> None:
    cheap, dear, wrong = (tmp_path / name for name in ("cheap.json", "dear.json", "wrong.json"))
    write_schedule(steps(instance.graph, CHEAP), cheap)
    write_schedule(steps(instance.graph, DEAR), dear)
    write_schedule(steps(instance.graph, CHEAP[1:]), wrong)
    assert run(instance, "update", "layered-12", cheap, "--method", "by hand") == 0
    assert "better: layered-12 free 90 %" in capsys.readouterr().out
    assert instance.record("free", 90).found.method == "by hand"
    files = {path: path.read_bytes() for path in instance.board.folder.parent.rglob("*.json")}
    assert run(instance, "update", "layered-12", dear) == 1
    assert "nowhere better than what is known" in capsys.readouterr().out
    assert run(instance, "update", "layered-12", wrong) == 2
    check_text("scoreboard.invalid-schedule", capsys.readouterr().err.strip())
    assert files == {path: path.read_bytes() for path in instance.board.folder.parent.rglob("*.json")}


def test_check_finds_an_outdated_table(instance: InstanceRecords, capsys: Capture) -> None:
    instance.offer(steps(instance.graph, CHEAP), "a")
    assert run(instance, "check") == 2
    assert run(instance, "table") == 0
    assert run(instance, "check") == 0
    page = instance.board.folder.parent / "table.md"
    page.write_text(page.read_text(encoding="utf-8").replace("11.1111", "10.1111"), encoding="utf-8")
    capsys.readouterr()
    assert run(instance, "check") == 2
    check_text("scoreboard.old-table", capsys.readouterr().err.strip())


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--suite", "x"],
        ["run", "--methods", "x"],
        ["run", "--budgets", "85"],
        ["run", "--orders", "any"],
        ["run", "--seconds", "0"],
        ["run", "--seeds", "a"],
        ["update", "x", "y"],
        ["update", "layered-12", "none.json"],
    ],
)
def test_wrong_arguments(instance: InstanceRecords, words: list[str], capsys: Capture) -> None:
    more = ["--log", instance.board.folder / "log"] if words[0] == "run" else []
    assert run(instance, *words, *more) == 2
    check_text("scoreboard.mistake", capsys.readouterr().err.removesuffix("\n"))


def test_published_numbers_match_the_order_rule() -> None:
    assert {name for name, _ in PUBLISHED} <= set(suite.INSTANCES)
    assert [one.who for one in published("rl_g1", "fixed", 90)] == ["Checkmate", "Moccasin"]
    assert [str(one) for one in published("rl_g3", "free", 70)] == ["FastSA 4.8 (over budget)"]
    assert published("layered-12", "free", 90) == []


def test_absent_instances_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    absent = suite.Instance("rl_g1", unit_chain, tmp_path / "none.json")
    monkeypatch.setitem(suite.INSTANCES, "rl_g1", absent)
    with refused("scoreboard.absent-graph", ProblemError, culprit="rl_g1"):
        suite.suite("rl_g1")
    assert "rl_g1" not in [one.name for one in suite.suite("full")]
