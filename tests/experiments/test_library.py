"""Reference library: certified records, replaced only by better ones; its commands."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from refusals import check_text, refused
from shell import shell

from remat import Problem, Schedule, solve
from remat.bounds import best_bound
from remat.errors import FormatError, GraphError, ProblemError
from remat.experiments.library import runs
from remat.experiments.library.instances import FAMILIES, Instance, LibraryProblem, instance, instances, problems
from remat.experiments.library.ledger import RECORDS, Class, Ledger, check_strays, facts
from remat.experiments.library.pages import page, picture
from remat.experiments.library.published import PUBLISHED, published
from remat.experiments.library.records import BoundRecord, Origin
from remat.experiments.library.runs import Call, attempt, rerun
from remat.experiments.library.submission import submit, submitted
from remat.graphs import ComputeGraph, layered
from remat.graphs.families import unit_chain
from remat.schedule.address_files import read_addresses, write_addresses
from remat.schedule.addresses import check_addresses
from remat.schedule.buffer_tables import read_table
from remat.schedule.io import write_schedule

#: Ops above which certifying an instance is a slow test.
LARGE = 100
BY = Origin(method="test", seconds=0.5)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one.name, marks=[] if one.ops <= LARGE else [pytest.mark.slow])
        for one in instances().values()
        if not one.file
    ],
)
def test_records_are_certified(name: str) -> None:
    Ledger(instance(name)).check()


@pytest.mark.shared
@pytest.mark.parametrize("name", [one.name for one in instances().values() if one.file])
def test_records_of_published_graphs_are_certified(name: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_LIBRARY_GRAPHS", str(shared / "data" / "graphs"))
    Ledger(instance(name)).check()


def test_files_and_families_are_those_of_the_manifest() -> None:
    check_strays()
    assert {one.family for one in instances().values()} == set(FAMILIES)
    assert all(list(one.problems()) for one in instances().values())
    assert {name for name, _ in PUBLISHED} <= set(instances())


def test_larger_budgets_and_free_orders_are_never_worse() -> None:
    for one in instances().values():
        known = list(Ledger(one).standings())
        for standing, easier in itertools.product(known, known):
            problem, other = standing.problem, easier.problem
            if other.kind in (problem.kind, "free") and (other.percent or 0) >= (problem.percent or 0):
                assert standing.value is None or (easier.value is not None and easier.value <= standing.value)


# -- a separate ledger -------------------------------------------------------------------------------------------------

#: Schedules of a training chain of 9 ops with a reference peak of 6: optimal within 5 bytes, and with one op more.
CHEAP = ("f0", "f1", "f2", "f3", "loss", "g3", "g2", "g1", "f0", "g0")
DEAR = (*CHEAP[:-1], "f0", "g0")
#: The same cost as DEAR, within 4 bytes.
LEAN = ("f0", "f1", "f2", "f3", "loss", "g3", "g2", "f0", "f1", "g1", "g0")
CHAIN = Instance(
    name="chain", version=1, family="formula", generator="unit-chain", options={"n": 4}, budgets=(90, 80, 70, 60, 50),
    **facts(unit_chain(4)),
)  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(CHAIN, tmp_path / "records")


def steps(graph: ComputeGraph, names: tuple[str, ...]) -> Schedule:
    return Schedule.of_computes(graph, [graph.op_index[name] for name in names])


def standing(ledger: Ledger, kind: str, percent: int):
    return Ledger(ledger.instance, ledger.path.parent).standing(LibraryProblem(ledger.instance, kind, percent))


def names(found: list[LibraryProblem]) -> set[str]:
    return {each.name.partition("/")[2] for each in found}


def bound(value: int | None, budget: int | None, order: str = "free", **more: object) -> BoundRecord:
    fields = {"measure": "cost", "max_computes": None, "source": "a bound", "problem": "free-90", "origin": BY} | more
    return BoundRecord(value=value, budget=budget, order=order, **fields)


def test_only_better_schedules_are_appended(ledger: Ledger) -> None:
    dear, cheap = steps(ledger.graph, DEAR), steps(ledger.graph, CHEAP)
    assert names(ledger.offer(dear, BY)) == {"fixed-90", "free-90"}
    first = ledger.path.read_bytes()
    assert ledger.offer(dear, BY) == []
    assert ledger.path.read_bytes() == first
    assert names(ledger.offer(cheap, Origin(method="c"))) == {"fixed-90", "free-90"}
    best = standing(ledger, "free", 90)
    assert (best.best.cost, best.best.peak, best.best.origin.method, best.best.order) == (10, 5, "c", "fixed")
    assert ledger.path.read_bytes().startswith(first)
    assert ledger.offer(dear, BY) == ledger.offer(Schedule.reference(ledger.graph), BY) == []
    assert [record.cost for record in ledger.history(best.problem)] == [11, 10]
    assert ledger.check() == 2


def test_two_processes_lose_no_record(ledger: Ledger) -> None:
    """Both read the file before either adds a record."""
    other = Ledger(ledger.instance, ledger.path.parent)
    ledger.offer(steps(ledger.graph, DEAR), BY)
    assert other.add(bound(10, 5)) != []
    assert other.offer(steps(ledger.graph, DEAR), BY) == []
    assert ledger.offer(steps(ledger.graph, CHEAP), BY) != []
    assert len(Ledger(ledger.instance, ledger.path.parent).records) == 3


def test_lower_peak_at_equal_cost_is_better(ledger: Ledger) -> None:
    for computes, found in ((DEAR, (11, 5)), (LEAN, (11, 4)), (DEAR, (11, 4)), (CHEAP, (10, 5)), (LEAN, (10, 5))):
        ledger.offer(steps(ledger.graph, computes), BY)
        best = standing(ledger, "free", 90).best
        assert (best.cost, best.peak) == found


def test_bounds_hold_for_what_they_cover(ledger: Ledger) -> None:
    def values(kind: str) -> list[int | None]:
        return [standing(ledger, kind, percent).bound.value for percent in CHAIN.budgets]

    assert values("fixed") == [9] * 5
    assert len(ledger.add(bound(11, 4, "fixed"))) == 4
    assert (values("fixed"), values("free")) == ([9, 11, 11, 11, 11], [9] * 5)
    assert len(ledger.add(bound(10, 5))) == 6
    assert ledger.add(bound(10, 5)) == ledger.add(bound(99, 5, max_computes=2)) == []
    assert names(ledger.add(bound(4, None, measure="peak"))) == {
        f"{kind}-{percent}" for kind in ("fixed", "free") for percent in (60, 50)
    }
    assert values("free") == [10, 10, 10, None, None]
    assert ledger.add(bound(None, 3)) == []
    assert ledger.check() == 3


def test_contradictions_are_refused(ledger: Ledger) -> None:
    ledger.offer(steps(ledger.graph, CHEAP), BY)
    before = ledger.path.read_bytes()
    for record in (bound(11, 5), bound(None, 5), bound(6, None, measure="peak")):
        with refused("library.contradiction", FormatError, culprit="chain/fixed-90"):
            ledger.add(record)
    assert ledger.path.read_bytes() == before


def test_class_is_the_time_of_both_runs(ledger: Ledger) -> None:
    def group(kind: str, percent: int) -> Class:
        return standing(ledger, kind, percent).group

    assert group("free", 90) is Class.OPEN
    ledger.offer(steps(ledger.graph, CHEAP), Origin(method="a", seconds=0.7))
    ledger.add(bound(10, 5, origin=Origin(method="a", seconds=0.7)))
    assert group("free", 90) is Class.TOY  # one run
    assert standing(ledger, "free", 90).gap == 0
    ledger.add(bound(4, None, measure="peak", origin=Origin(method="b", seconds=90.0)))
    assert (group("free", 50), group("free", 80)) == (Class.MEDIUM, Class.OPEN)


def test_class_without_times_is_closed(ledger: Ledger) -> None:
    ledger.offer(steps(ledger.graph, CHEAP), Origin(method="a", seconds=0.7))
    ledger.add(bound(10, 5, origin=Origin(method="b")))
    assert standing(ledger, "free", 90).group is Class.CLOSED


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text[:-1],
        lambda text: text.replace('","', '", "', 1),
        lambda text: text + "[]\n",
        lambda text: text + text,
        *(
            lambda text, old=old, new=new: text.replace(old, new)
            for old, new in (
                ('"cost":10', '"cost":9'), ('"peak":5', '"peak":4'), ('"peak_step":', '"peak_step":1'),
                ('"order":"fixed"', '"order":"free"'), ('"digest":"', '"digest":"0'), ('"kind":', '"more":1,"kind":'),
                ('"0-7 0 8"', '"0-8"'), ('"0-7 0 8"', '"0-7 8 0"'), ('"0-7 0 8"', '"0-6 8 7"'), ('"0-7 0 8"', '"0-9"'),
                ('"0-7 0 8"', '"0-7  8"'), ('"0-7 0 8"', '"x"'), ('"seconds":0.5', '"seconds":-1.0'),
                ('"date":""', '"date":"today"'), ('"kind":"schedule"', '"kind":[]'),
            )
        ),
    ],
)  # fmt: skip
def test_damaged_records_are_refused(ledger: Ledger, change) -> None:
    ledger.offer(steps(ledger.graph, CHEAP), BY)
    text = ledger.path.read_text(encoding="utf-8")
    changed = change(text)
    assert changed != text
    ledger.path.write_text(changed, encoding="utf-8")
    with refused("library.damaged", FormatError, culprit="chain.jsonl", hide={str(ledger.path.parent): "<folder>"}):
        Ledger(CHAIN, ledger.path.parent).check()


def test_strays_are_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing.jsonl").write_text("", encoding="utf-8")
    with refused("library.stray", FormatError, culprit="nothing.jsonl", hide={str(tmp_path): "<folder>"}):
        check_strays(tmp_path)


def test_changed_generators_and_facts_are_refused(tmp_path: Path) -> None:
    with refused("library.digest", GraphError, culprit="chain"):
        CHAIN.model_copy(update={"options": {"n": 5}}).graph()
    with refused("library.facts", FormatError, culprit="chain"):
        Ledger(CHAIN.model_copy(update={"least": 4}), tmp_path).check()


def test_absent_graphs_and_unknown_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMAT_LIBRARY_GRAPHS", raising=False)
    with refused("library.absent", GraphError, culprit="rl_g1"):
        instance("rl_g1").graph()
    assert not instance("rl_g1").available
    with refused("library.unknown", ProblemError, culprit="nothing"):
        problems(["nothing"])


@pytest.mark.parametrize("live_search", [True, False])
def test_runs_add_what_they_prove(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, live_search: bool) -> None:
    monkeypatch.setattr(runs.LiveSearch, "applies", lambda _problem: live_search)
    problem = LibraryProblem(CHAIN, "free", 90)
    news = attempt(problem, ledger, Call("exhaustive", 60.0))
    assert names(news.better) >= {"fixed-90", "free-90"}
    assert "free-90" in names(news.raised)
    known = standing(ledger, "free", 90)
    assert known.closed
    assert known.value == 10
    origin = known.best.origin
    assert (origin.method, origin.limit, origin.clock) == ("exhaustive", 60.0, "processor")
    assert origin.seconds is not None
    assert rerun(known, ledger).reached
    attempt(LibraryProblem(CHAIN, "fixed", 50), ledger, Call("least-peak", 60.0))
    assert standing(ledger, "fixed", 50).best.peak == 3
    assert ledger.check() == len(ledger.records)


def test_bounds_need_not_exceed_the_best_known_cost(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.offer(steps(ledger.graph, CHEAP), BY)
    known: list[int | None] = []
    monkeypatch.setattr(
        runs, "best_bound", lambda *_, enough, **options: known.append(enough) or best_bound(*_, **options)
    )
    attempt(LibraryProblem(CHAIN, "fixed", 90), ledger, Call("bounds", 60.0))
    assert rerun(standing(ledger, "fixed", 90), ledger).reached
    assert known == [10, 10]


def test_rerun_reports_bounds_it_does_not_reach(ledger: Ledger) -> None:
    ledger.add(bound(12, 5, problem="free-90", origin=Origin(method="exhaustive", limit=60.0)))
    again = rerun(standing(ledger, "free", 90), ledger)
    assert (again.value, again.expected, again.reached) == (10, 12, False)


def test_orders_of_least_peak_have_no_recomputation(tmp_path: Path) -> None:
    ledger = Ledger(instance("in-tree-3"), tmp_path)
    (problem,) = ledger.instance.problems()
    assert problem.name == "in-tree-3/order"
    attempt(problem, ledger, Call("auto", 60.0))
    known = ledger.standing(problem)
    assert known.closed
    assert known.value == 5


# -- submissions and commands ------------------------------------------------------------------------------------------


@pytest.fixture
def chain8(tmp_path: Path) -> tuple[Path, ComputeGraph]:
    """Folder of records, and the graph of an instance of the library."""
    return tmp_path / "records", instance("unit-chain-8").graph()


def _written(path: Path, graph: ComputeGraph) -> Path:
    result = solve(Problem(graph, "70%"), "greedy", stop=5)
    write_schedule(result.schedule, path)
    return path


def test_submissions_get_three_answers(chain8: tuple[Path, ComputeGraph], tmp_path: Path) -> None:
    folder, graph = chain8
    good = _written(tmp_path / "good.json", graph)
    first = submit(good, submitted("by hand", seconds=1.0), folder=folder)
    assert str(first).startswith("better and added: unit-chain-8/fixed-70")
    again = submit(good, submitted("by hand"), folder=folder)
    check_text("library.answer", str(again))
    write_schedule(Schedule.reference(graph), tmp_path / "reference.json")
    check_text("library.answer", str(submit(tmp_path / "reference.json", submitted("x"), folder=folder)))
    write_schedule(Schedule.of_computes(graph, [1, 0]), tmp_path / "wrong.json")
    check_text("library.answer", str(submit(tmp_path / "wrong.json", submitted("x"), folder=folder)))
    assert [record.origin.method for record in Ledger(instance("unit-chain-8"), folder).records] == ["by hand"]


def test_submission_of_a_strange_graph_is_refused(tmp_path: Path) -> None:
    other = unit_chain(3)
    write_schedule(Schedule.reference(other), tmp_path / "other.json")
    with refused("library.submission", FormatError, culprit="other.json", hide={str(tmp_path): "<folder>"}):
        submit(tmp_path / "other.json", submitted("x"), folder=tmp_path / "records")
    (tmp_path / "list.txt").write_text("\n".join(other.order))
    with refused("library.submission.format", FormatError, culprit="list.txt", hide={str(tmp_path): "<folder>"}):
        submit(tmp_path / "list.txt", submitted("x"), folder=tmp_path / "records")


def test_commands_name_graphs_that_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMAT_LIBRARY_GRAPHS", raising=False)
    for command in ("run", "check"):
        ran = shell("library", command, "rl_g1", "--folder", tmp_path)
        assert "left out, without their graphs: rl_g1; REMAT_LIBRARY_GRAPHS names their folder" in ran.out
    assert shell("library", "run", "rl_g1/free-90").out.strip() == "no problem is open"


def test_commands(chain8: tuple[Path, ComputeGraph], tmp_path: Path) -> None:
    folder, graph = chain8
    good = _written(tmp_path / "good.json", graph)
    ran = shell("library", "submit", good, "--method", "by hand", "--folder", folder)
    assert ran.code == 0
    assert "better and added" in ran.out
    assert "unit-chain-8.jsonl" in ran.out
    assert shell("library", "submit", good, "--method", "by hand", "--folder", folder).code == 1
    shown = shell("library", "show", "unit-chain-8/fixed-70", "--folder", folder)
    assert "by hand" in shown.out
    listed = json.loads(shell("library", "list", "unit-chain-8", "--folder", folder, "--json").out)
    assert [each["problem"] for each in listed] == [problem.name for problem in instance("unit-chain-8").problems()]
    assert listed[0]["class"] == "open"
    best = tmp_path / "best.json"
    assert shell("library", "export", "unit-chain-8/fixed-70", "-o", best, "--folder", folder).code == 0
    assert shell("library", "export", "unit-chain-8", "-o", tmp_path / "graph.json").code == 0
    assert shell("validate", tmp_path / "graph.json", best, "--budget", "70%").code == 0


@pytest.mark.slow
def test_commands_that_solve(chain8: tuple[Path, ComputeGraph], tmp_path: Path) -> None:
    folder, _ = chain8
    ran = shell("library", "run", "unit-chain-8", "-m", "exhaustive", "-t", "60", "--folder", folder)
    assert ran.code == 0
    closed = json.loads(shell("library", "list", "unit-chain-8", "--folder", folder, "--json").out)
    assert "open" not in {each["class"] for each in closed}
    assert [each["value"] for each in closed] == [20, 22, 45] * 2  # peaks of 7, 5 and 3 of 10 bytes
    assert "are right" in shell("library", "check", "unit-chain-8", "--folder", folder, "--rerun").out
    assert shell("library", "export", "unit-chain-8", "-o", tmp_path / "graph.json").code == 0
    best = tmp_path / "best.json"
    assert shell("library", "export", "unit-chain-8/free-50", "-o", best, "--folder", folder).code == 0
    ran = shell("validate", tmp_path / "graph.json", best, "--budget", "50%")
    assert ran.code == 0


#: Buffers of the reference order of a layered graph, whose least arena is the fullest step.
PLACES = Instance(
    name="arena-layered", version=1, family="allocation", generator="layered", options={"n": 16, "seed": 1},
    floor=25_570, **facts(layered(16, seed=1)),
)  # fmt: skip


def test_arenas_are_submitted_and_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses one after the other, then the least arena by an allocator, then damage."""
    monkeypatch.setattr("remat.experiments.library.submission.instance", lambda _: PLACES)
    ledger = Ledger(PLACES, tmp_path / "records")
    (problem,) = PLACES.problems()
    size = ledger.arena.sizes
    file = tmp_path / "addresses.csv"

    def answer(offset: np.ndarray):
        write_addresses(ledger.arena.addresses(offset), file)
        return submit(file, submitted("test"), PLACES.name, ledger.path.parent)

    assert answer(0 * size).verdict == "infeasible"
    assert answer(np.cumsum(size) - size).verdict == "better and added"
    ledger = Ledger(PLACES, ledger.path.parent)
    found = attempt(problem, ledger, Call("auto", 20))
    best = ledger.standing(problem)
    assert (found.better, best.value, best.closed) == ([problem], ledger.arena.bound, True)
    assert str(answer(np.cumsum(size) - size)).startswith(f"not better: {problem.name} has 25,570 bytes by ")
    assert "least arena" not in page(ledger)
    assert f"| arena {best.value:,} |" in page(ledger)
    assert picture(ledger) is not None
    assert Ledger(PLACES, ledger.path.parent).check() == len(ledger.records)
    text = ledger.path.read_text()
    for old, new, reason in (
        ('"arena":25570', '"arena":25571', "arena is 25571, but 25570"),
        (best.best.offsets, " ".join("0" for _ in size), "overlaps"),
        (best.best.offsets, "0 1", "2 offsets are not one"),
    ):
        ledger.path.write_text(text.replace(old, new))
        with pytest.raises(FormatError, match=reason):
            Ledger(PLACES, ledger.path.parent).check()


def test_arenas_are_exported(tmp_path: Path) -> None:
    table, best = tmp_path / "buffers.csv", tmp_path / "best.json"
    name = "arena-swiftnet-a"
    assert shell("library", "export", name, "-o", table).code == 0
    assert shell("library", "export", f"{name}/arena", "-o", best).code == 0
    buffers, _ = read_table(table)
    addresses = read_addresses(best)
    assert check_addresses(addresses, buffers).accepted
    assert addresses.arena == Ledger(instance(name)).standing(next(instance(name).problems())).value


def test_package_has_records() -> None:
    assert len(list(RECORDS.glob("*.jsonl"))) >= 19


def test_published_numbers_match_the_order_rule() -> None:
    assert [one.who for one in published("rl_g1", "fixed", 90)] == ["Checkmate", "Moccasin"]
    assert [str(one) for one in published("rl_g3", "free", 70)] == ["FastSA 4.8 (over budget)"]
    assert published("layered-12", "free", 90) == []
