"""Reading and writing schedules: round trips, strictness, formats of other tools, damaged bytes."""

import io
import json
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from schedule_oracle import random_graph, random_valid_steps

import remat.registry
from remat.errors import FormatError, ScheduleError
from remat.graphs import GraphBuilder
from remat.schedule import Schedule, StepKind, read_schedule, simulate, validate, write_schedule
from remat.schedule.formats.base import ScheduleFormat, schedule_formats
from remat.schedule.formats.checkmate import schedule_from_matrices
from remat.schedule.formats.plain_list import schedule_from_list
from remat.schedule.formats.remat_json import schedule_from_document, schedule_to_text
from remat.schedule.formats.rockmate import schedule_from_operations
from remat.schedule.simulate import with_frees

GOOD = {"format": "remat-schedule", "version": 1, "graph": "g", "steps": [["compute", "a"], ["free", "t"]]}


@pytest.fixture
def chain():
    """a (8) -> b (4) -> c (2) -> d (1)."""
    b = GraphBuilder("chain")
    for name, size, before in (("a", 8, []), ("b", 4, ["a"]), ("c", 2, ["b"]), ("d", 1, ["c"])):
        b.op(name, inputs=before, size=size, cost=size)
    return b.build()


def words(schedule):
    return " ".join(name if word == "compute" else "-" + name for word, name in schedule.steps())


def read(tmp_path, content, graph=None):
    path = tmp_path / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_schedule(path, graph)


# -- format of remat ---------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path):
    steps = [("compute", 'name with "quotes" and ünicode'), ("free", "t"), ("compute", "b")]
    schedule = Schedule.from_steps(steps, graph="g", graph_digest="d", source="s", meta={"b": [1], "a": None})
    path = tmp_path / "s.json"
    write_schedule(schedule, path)
    again = read_schedule(path)
    assert again == schedule
    for name in ("graph", "graph_digest", "source", "meta"):
        assert getattr(again, name) == getattr(schedule, name)
    text = path.read_text()
    assert schedule_to_text(again) == text
    assert text.isascii()
    assert '\n["free", "t"],\n' in text  # one step per line


def test_text_is_canonical(chain):
    by_names = Schedule.from_steps([("compute", n) for n in "abcd"], graph="chain", graph_digest=chain.digest)
    by_numbers = Schedule.of_computes(chain, [0, 1, 2, 3])
    assert schedule_to_text(by_names) == schedule_to_text(by_numbers)
    assert schedule_to_text(Schedule.from_steps([], meta={"a": 1, "b": 2})) == schedule_to_text(
        Schedule.from_steps([], meta={"b": 2, "a": 1})
    )


#: Refused values by key.
STRICT = {
    "version": [3, True, 1.0], "stepz": [[]], "graph": [3], "source": ["\ud800"], "meta": [[]],
    "steps": [{}, [["compute", "a"], "free"], *([step] for step in (
        ["offload", "a"], ["compute"], ["compute", 1], ["compute", ["a"]], [["compute"], "a"], ["compute", "a", "b"],
        ["compute", ""], ["compute", "a\nb"], ["compute", "\ud800"], ["compute", "a" * 5000],
    ))],
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in STRICT.items() for value in values])
def test_strict_types(tmp_path, key, value):
    with refused("schedule-file.strict", (FormatError, ScheduleError), culprit=str(tmp_path)):
        read(tmp_path, json.dumps({**GOOD, key: value}))


def test_other_documents_are_refused(tmp_path):
    for document in ([], 3, {}, {**GOOD, "format": "remat-graph"}):
        with refused("format.header"):
            schedule_from_document(document)
    with pytest.raises(FormatError, match="not a schedule"):
        read(tmp_path, '{"format": "remat-graph"}')
    with pytest.raises(FormatError, match=r"^[^:]*: line 2, column 1"):  # names the file once
        read(tmp_path, '{"format":\n')
    with pytest.raises(FormatError, match="no such file"):
        read_schedule(tmp_path / "nothing")
    with pytest.raises(FormatError, match="meta"):
        schedule_to_text(Schedule.from_steps([], meta={"a": {1}}))


def is_plugin_format(source):
    return source.data.startswith(b"MINE")


@pytest.mark.parametrize(
    ("functions", "content", "fault"),
    [
        ((is_plugin_format, lambda s, g: Schedule.from_steps([("compute", "m")])), "MINE", None),
        ((lambda s: 1 / 0,), b"MINE\0", r"not a schedule in any known format .*; format 'mine' fails: ZeroDivision"),
        ((is_plugin_format, lambda s, g: 1 / 0), "MINE", "schedule format 'mine' fails: ZeroDivis"),
    ],
)
def test_formats_of_plug_ins(tmp_path, monkeypatch, functions, content, fault):
    """A failing format does not disturb others, and is named if no other matches."""
    mine = SimpleNamespace(name="mine", value="somewhere:MINE", load=lambda: ScheduleFormat("mine", "", *functions))
    monkeypatch.setattr(remat.registry, "_entries", lambda group: (mine,) if group == "remat.schedule_formats" else ())
    assert [*schedule_formats()][-1].name == "plain-list"
    assert words(read(tmp_path, "a\nb")) == "a b"
    with pytest.raises(FormatError, match=fault) if fault else nullcontext():
        assert words(read(tmp_path, content)) == "m"


# -- formats of other tools ----------------------------------------------------------------------------------------


def test_saved_sets(tmp_path):
    b = GraphBuilder("step")
    b.op("f", size=4, phase="forward")
    b.op("g", inputs=["f"], size=4, phase="forward")
    b.op("h", inputs=["f", "g"], size=4, phase="backward")
    graph = b.build()
    assert words(read(tmp_path, '{"saved": ["g"]}', graph)) == "f g f h"
    assert words(read(tmp_path, '{"saved": []}', graph)) == "f g f g h"
    with pytest.raises(FormatError, match="saved must be a list"):
        read(tmp_path, '{"saved": 1}', graph)
    with pytest.raises(ScheduleError, match="'x' is not in graph"):
        read(tmp_path, '{"saved": ["x"]}', graph)


def test_plain_lists(tmp_path):
    assert words(read(tmp_path, "# comment\n a \n\nb c\r\na\n")) == "a b c a"
    assert words(read(tmp_path, ' ["a", "b", "a"]')) == "a b a"
    names = ["jit(f)/add.1", "model.layers[0].mlp", "a:b=c", "B_1", "L", "Conv2d (3x3)", "moduleA", "x->y", "graph"]
    assert read(tmp_path, "\n".join(names)).computes() == names
    assert read(tmp_path, json.dumps(["HloModule x", "Fn_0"])).computes() == ["HloModule x", "Fn_0"]


R = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 1]])
S = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])


def entry(array, stage, node, value):
    """Return the matrix with one entry changed."""
    changed = array.astype(object)
    changed[stage, node] = value
    return changed


def matrices(computed=R, retained=S):
    """Return Checkmate's matrices as a JSON document."""
    return {"R": np.asarray(computed).tolist(), "S": np.asarray(retained).tolist()}


def archive(**arrays):
    """Return Checkmate's matrices as an archive."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_matrices(tmp_path, chain):
    schedule = schedule_from_matrices(chain, R, S)
    assert words(schedule) == "a b -a c -b a b -a -b d -c -d"
    assert validate(chain, schedule).accepted
    # Unread tensors that the matrices retain stay live (dead retention).
    kept = entry(entry(S, 2, 0, 1), 3, 0, 1)
    assert words(schedule_from_matrices(chain, R, kept)) == "a b c -b a b -a -b d -c -d"
    # Graph outputs stay live in the last stage.
    assert words(schedule_from_matrices(chain.with_outputs(["d"]), R, S)).endswith("d -c")
    # Checkmate counts the retained and the computed value; memory holds one.
    twice = simulate(chain, schedule_from_matrices(chain, entry(R, 1, 0, 1), entry(S, 1, 0, 1)))
    assert (twice.memory[twice.is_compute].tolist()[:3], twice.redundant) == ([8, 8, 12], 1)
    # Values of solvers are approximate.
    assert schedule_from_matrices(chain, R - 9e-6 * R, S + 1e-6) == schedule
    for file in (archive(R=R, S=S), archive(R=R.astype(bool), S=S.astype(float), U=R), json.dumps(matrices())):
        assert read(tmp_path, file, chain) == schedule
    with refused("format.needs-graph"):
        read(tmp_path, archive(R=R, S=S))


def test_matrices_follow_the_reference_order():
    b = GraphBuilder("listed otherwise")
    b.op("late", inputs=["early"], size=1)
    b.op("early", size=1)
    g = b.build()
    assert g.op_names[0] == "late"
    assert words(schedule_from_matrices(g, np.eye(2), np.array([[0, 0], [1, 0]]))) == "early late -early -late"


def test_graphs_without_checkmate_matrices():
    several, shared = GraphBuilder("two outputs"), GraphBuilder("buffer")
    several.op("a", outputs={"x": 1, "y": 1})
    shared.tensor("x", 1)
    shared.op("a", outputs=["x"])
    shared.op("b", outputs=["x"])
    for graph, kind, culprit in (
        (several.build(), "format.several-outputs", "a"),
        (shared.build(), "format.several-producers", "x"),
    ):
        with refused(kind, culprit=culprit):
            schedule_from_matrices(graph, R, S)


REGISTERS = [
    ["alloc", 0, 0, 8], ["compute", 0, 0, {}, 8], ["alloc", 1, 1, 4], ["compute", 1, 1, {"0": 0}, 4], ["free", 0, 0],
    ["alloc", 0, 2, 2], ["compute", 2, 0, {"1": 1}, 2], ["alloc", 2, 3, 1], ["compute", 3, 2, {"2": 0}, 1],
]  # fmt: skip


def registers(number=0, operation=REGISTERS[0]):
    """Return Checkmate's register operations as a JSON document, with one replaced."""
    return {"producer": "Checkmate", "ops": [*REGISTERS[:number], operation, *REGISTERS[number + 1 :]]}


def test_registers(tmp_path, chain):
    assert words(read(tmp_path, json.dumps(registers()), chain)) == "a b -a c d"


SLOW, FAST, ON = ({"disabled": False, **more} for more in ({"fast_forward": False}, {"fast_forward": True}, {}))
OFF = {"disabled": True}


def test_rockmate(tmp_path):
    b = GraphBuilder("rk")
    b.op("F", outputs={"x data": 2, "x phantoms": 5})
    b.op("loss", inputs=["x data"], size=1)
    b.op("B", inputs=["loss", "x phantoms"], size=1)
    g = b.build()
    ops = [
        ["compute", "F", FAST], ["delete", "x phantoms", ON], ["compute", "loss", SLOW | OFF],
        ["delete", "x data", OFF], ["delete", "x data", ON], ["compute", "F", SLOW],
        ["compute", "F", FAST], ["compute", "B", SLOW], ["compute", "B", SLOW | OFF],
    ]  # fmt: skip
    expected = "F -x phantoms loss -x data F F B"
    assert words(schedule_from_operations(g, ops, loss_index=2)) == expected
    assert words(read(tmp_path, json.dumps({"ops": ops, "loss_index": 2}), g)) == expected
    assert "loss" not in words(schedule_from_operations(g, ops))


def test_offloading_schedules_are_refused(tmp_path, chain):
    compute = [["compute", name, SLOW] for name in "abcd"]
    for extra, culprit in (
        (
            [["allocate", "w", ON], ["prefetch", "a", OFF], ["offload", "b", ON | {"time": 3}]],
            "ops[6] is 'offload' of 'b'",
        ),
        ([["allocate", "w", OFF], ["synchronize", "main", ON]], "ops[5] is 'synchronize' of 'main'"),
    ):
        with refused("format.offload", culprit=culprit):
            read(tmp_path, json.dumps({"ops": [*compute, *extra], "loss_index": None}), chain)
    off = [["offload", "b", OFF], ["allocate", "w", OFF]]
    assert words(schedule_from_operations(chain, [*compute, *off])) == "a b c d"


def test_matrices_of_any_order(tmp_path, chain):
    """Other orders get more stages; frees that matrices cannot express are refused."""
    path = tmp_path / "m"
    for names in ("abcbd", "abacbd", "ababcabd", "abcdabcd"):
        schedule = Schedule.from_steps([("compute", name) for name in names])
        write_schedule(schedule, path, "checkmate", chain)
        assert read_schedule(path, chain) == with_frees(chain, schedule)
        stages = json.loads(path.read_text())["R"]
        assert len(stages) == 4 + (names.rindex("d") > names.index("d"))
    late = Schedule.from_steps([*(("compute", name) for name in "abc"), ("free", "a"), ("free", "b"), ("compute", "d")])
    write_schedule(late, path, "checkmate", chain)  # live through a stage that does not read it
    assert validate(chain, read_schedule(path, chain)).peak == validate(chain, late).peak
    steps = [("free" if name in "BA" else "compute", name.lower()) for name in "abBbcabAd"]
    with refused("format.frees", culprit="'b'"):
        write_schedule(Schedule.from_steps(steps), path, "checkmate", chain)
    with refused("format.needs-graph"):
        write_schedule(late, path, "checkmate")
    with refused("schedule.not-valid", ScheduleError):
        write_schedule(Schedule.from_steps(steps[1:]), path, "rockmate", chain)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        *[(text, "format.empty-list") for text in ("", "# nothing\n", "[]")],
        ('["a", 1]', "format.list-entry"),
        ("a\tb", "schedule.step-name"),
        *[(text, "schedule-file.unreadable") for text in (b"\xff\xfe", b"a\0b")],
        *[(matrices(entry(R, 1, 2, x)), "format.matrix-entry") for x in (0.5, 2, -1, 0.999, -(2.0**63))],
        *[(matrices(entry(R, 1, 2, x)), "schedule-file.matrix") for x in ("1", 10**400)],
        *[(archive(R=entry(R, 1, 2, x).astype(float), S=S), "format.matrix-entry") for x in (np.nan, np.inf)],
        (matrices(R[:, :3]), "format.matrix"),
        (matrices(R[:0], S[:0]), "format.matrix"),
        ({"R": [*R[:2].tolist(), [1], *R[3:].tolist()], "S": []}, "format.matrix"),
        *[({"R": computed, "S": []}, "schedule-file.matrix") for computed in (1, R[0].tolist())],
        (matrices(R, S[:3]), "format.stages"),
        *[(matrices(R, entry(S, 3, node, 1)), "format.retained") for node in (0, 3)],
        *[(archive(R=x, S=S), "format.matrix") for x in (entry(R, 0, 0, {}), np.zeros((4, 4, 4)), np.array([["a"]]))],
        (archive(R=R), "format.archive"),
        (registers(2, ["alloc", 0, 1, 4]), "format.register"),
        (registers(2, ["alloc", 1, 0, 8]), "format.register"),
        (registers(2, ["alloc", 1, 1, 5]), "format.register-bytes"),
        (registers(2, ["alloc", 1, 9, 4]), "format.node"),
        (registers(3, ["compute", 1, 0, {"0": 0}, 4]), "format.register"),
        (registers(3, ["compute", 1, 1, {"0": 7}, 4]), "format.register"),
        (registers(3, ["compute", 1, 1, {"0": 0}, 5]), "format.register-cost"),
        (registers(4, ["free", 1, 0]), "format.register"),
        *[(registers(4, operation), "schedule-file.operation") for operation in (["drop", 1, 0], ["free", "1", 0])],
        ({"producer": "Checkmate", "ops": {}}, "schedule-file.operation"),
        ({"ops": [["compute", "G", FAST]], "loss_index": 0}, "format.unknown-op"),
        *[({"ops": ops, "loss_index": 0}, "schedule-file.operation") for ops in ([["compute", "F", ON]], [["delete"]])],
        ({"ops": {}, "loss_index": 0}, "schedule-file.operation"),
        ({"ops": [], "loss_index": "1"}, "schedule-file.operation"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path, chain, content, kind):
    with refused(kind, culprit=str(tmp_path)):
        read(tmp_path, json.dumps(content) if isinstance(content, dict) else content, chain)


@pytest.mark.parametrize(
    "text",
    [
        "ENTRY main {\n  ROOT c = f32[] constant(0)\n}\n",  # HLO without its module line
        "# exported\n  add.1 = f32[2]{0} add(x, y)\n",
        "module @jit_f {\n  func.func public @main() {\n",
        "digraph G {\n a -> b\n}\n",
        "<?xml version='1.0'?>\n",
        "def main():\n    pass\n",
        "[[1, 0], [1, 1]]",
    ],
)
def test_other_texts_are_no_plain_lists(tmp_path, text):
    with pytest.raises(FormatError, match="not a schedule"):
        read(tmp_path, text)


# -- random schedules --------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32).map(Random))
def test_random_schedules_round_trip(random):
    graph = random_graph(random)
    schedule = Schedule.from_steps(random_valid_steps(random, graph, frees=True))
    again = schedule_from_document(json.loads(schedule_to_text(schedule)))
    assert again == schedule
    assert again.digest == schedule.digest
    plain = schedule.without_frees()
    if len(plain):
        assert schedule_from_list("\n".join(plain.computes())) == plain
    assert not (plain.kinds == StepKind.FREE).any()
