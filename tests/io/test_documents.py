"""Documents: all faults in one error, exact types, schemas, optional keys."""

import gc
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from refusals import refused
from schemas import schemas
from shell import ok

from remat.errors import FormatError, FormatRemark
from remat.graphs import ComputeGraph, Op, Tensor, read_graph, write_graph
from remat.graphs.formats.remat_json import graph_from_document, graph_to_text
from remat.io.files import parse_json
from remat.io.formats import reading
from remat.schedule.formats.plan_files import plan_from_document
from remat.schedule.formats.remat_json import schedule_from_document
from remat.schedule.formats.rockmate import schedule_from_operations

GRAPH: dict[str, Any] = {
    "format": "remat-graph", "version": 1,
    "tensors": [{"name": "x", "size": 4}, {"name": "y", "size": 2}],
    "ops": [{"name": "a", "outputs": ["x"]}, {"name": "b", "inputs": ["x"], "outputs": ["y"]}],
}  # fmt: skip
SCHEDULE: dict[str, Any] = {"format": "remat-schedule", "version": 1, "steps": [["compute", "a"]]}
PLAN: dict[str, Any] = {"format": "remat-plan", "version": 1, "statements": [["allocate", 0, "x", 4]]}


def test_schemas_match_the_models() -> None:
    """``make schemas`` updates them."""
    assert len(schemas()) == 3
    for path, text in schemas().items():
        assert path.read_text(encoding="utf-8") == text, path.name
        jsonschema.Draft202012Validator.check_schema(json.loads(text))
    for path, document in zip(schemas(), (GRAPH, SCHEDULE, PLAN), strict=True):
        schema = json.loads(path.read_text(encoding="utf-8"))
        jsonschema.validate(document, schema)
        for wrong in ({"version": 3}, {"more": 1}, {key: [["go", "a"]] for key in ("ops", "steps", "statements")}):
            assert not jsonschema.Draft202012Validator(schema).is_valid(document | wrong), path.name


def test_all_faults_of_a_file_are_reported_together(tmp_path: Path) -> None:
    bad = json.loads(json.dumps(GRAPH))
    bad["ops"][0] |= {"cost": 1.5, "recomputable": 1, "extra": 0}
    del bad["ops"][1]["name"]
    bad["tensors"][1]["size"] = "2"
    (tmp_path / "g.json").write_text(json.dumps(bad))
    with refused("documents.faults", culprit="g.json"):
        read_graph(tmp_path / "g.json")
    for read, *documents in (
        (graph_from_document, {**bad, "ops": [{"name": 1, "outputs": 2}] * 6}),
        (schedule_from_document, {**SCHEDULE, "steps": [["offload", "a"], ["free"], "x"], "graph": 1}),
        (plan_from_document, {**PLAN, "statements": [["go"], ["deallocate", 1], [2]], "inputs": [[1]]}),
        (schedule_from_operations, graph_from_document(GRAPH), [["delete"], 3]),
    ):
        with refused("documents.faults"):
            read(*documents)


@pytest.mark.parametrize("number", [1.0, 1.5, True, False, None, "1", "1_000", "\uff11", [1], {}, 1e300])
def test_only_exact_integers_are_accepted(number: Any) -> None:
    for key in ("cost", "workspace"):
        with refused("documents.faults"):
            graph_from_document({**GRAPH, "ops": [{"name": "a", "outputs": ["x"], key: number}]})
    with refused("documents.faults"):
        graph_from_document({**GRAPH, "constant_memory": number})
    for statement in (["allocate", number, "x", 4], ["allocate", 0, "x", number], ["deallocate", number],
                      ["compute", "a", [number], []]):  # fmt: skip
        with refused("documents.faults"):
            plan_from_document({**PLAN, "statements": [statement]})
    for header in (GRAPH, SCHEDULE, PLAN):
        for read in (graph_from_document, schedule_from_document, plan_from_document):
            with refused("format.header"):
                read({**header, "version": number})


def test_optional_keys(tmp_path: Path) -> None:
    """Names, sizes and outputs suffice; a remark reports missing costs."""
    path = tmp_path / "g.json"
    path.write_text(json.dumps(GRAPH))
    with pytest.warns(FormatRemark, match=r"g\.json: 2 of 2 ops say no cost, which is taken as 0 \('a', 'b'\)$"):
        graph = read_graph(path)
    assert graph == ComputeGraph("", [Tensor("x", 4), Tensor("y", 2)], [Op("a", (), ("x",)), Op("b", ("x",), ("y",))])
    write_graph(graph, path)
    assert set(json.loads(path.read_text())["ops"][0]) == {"name", "type", "cost", "inputs", "outputs"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_graph(path) == graph
    path.write_text(json.dumps(GRAPH))
    for line in ("show", "solve --budget 100% -m greedy -q"):
        assert ok(line, path).err.startswith(f"remat: remark: {path}: 2 of 2 ops say no cost")


def test_bytes_of_version_1_files() -> None:
    graph = graph_from_document({**GRAPH, "ops": [*GRAPH["ops"][:1], {**GRAPH["ops"][1], "phase": "loss", "cost": 3}]})
    assert graph_to_text(graph) == (
        '{\n"format": "remat-graph",\n"version": 1,\n"name": "",\n"source": "",\n"cost_unit": "none",\n'
        '"constant_memory": 0,\n"tensors": [\n{"name": "x", "size": 4},\n{"name": "y", "size": 2}\n],\n"ops": [\n'
        '{"name": "a", "type": "", "cost": 0, "inputs": [], "outputs": ["x"]},\n'
        '{"name": "b", "type": "", "cost": 3, "inputs": ["x"], "outputs": ["y"], "phase": "loss"}\n],\n"meta": {}\n}\n'
    )


def test_repeated_keys_are_refused() -> None:
    for text in (
        '{"format": 1, "format": 1}',
        '{"ops": [{"name": "a", "name": "a"}]}',
        r'{"a": {"\u0061": 1, "a": 2}}',
    ):
        with refused("format.json"):
            parse_json(text, "g.json")


def test_thousand_faults_give_one_short_line() -> None:
    bad = {**GRAPH, "ops": [{"name": "a" * 5000, "outputs": ["x"], "\x1b" * 5000: 1, "cost": "9" * 5000}] * 1_000}
    with pytest.raises(FormatError) as caught:
        graph_from_document(bad)
    assert len(str(caught.value)) < 1000 and str(caught.value).isprintable()
    assert str(caught.value).endswith("and 1,995 more")


def test_overlapping_readers_restore_the_garbage_collector() -> None:
    """The first reader to leave, here by an error, does not enable it for the other."""
    inside, first_left = threading.Barrier(2, timeout=10), threading.Event()
    seen: list[bool] = []

    def second() -> None:
        with reading():
            inside.wait()
            first_left.wait(10)
            seen.append(gc.isenabled())

    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            first_left.clear()
            other = threading.Thread(target=second)
            with pytest.raises(FormatError), reading():
                other.start()
                inside.wait()
                parse_json("", "empty")
            first_left.set()
            other.join()
            assert gc.isenabled() is on
        finally:
            gc.enable()
    assert seen == [False, False]
