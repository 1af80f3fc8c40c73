"""torch's artefact min_cut_information as a schedule: written by hand here, what torch writes is in tests/pytorch."""

import copy
import json

import pytest

from remat.cli import main
from remat.errors import FormatError
from remat.graphs import GraphBuilder, write_graph
from remat.schedule import read_schedule, validate
from remat.schedule.formats.min_cut import MinCutDocument, _Match

NODES, SAVED = "Joint Graph Node Information", "Min Cut Solution Saved Values"


def node(target, *reads):
    return {"target": target, "input_arguments": list(reads), "shape": "torch.Size([2])", "stack_trace": "x.py"}


def document(**nodes):
    return {
        "Joint Graph Size": len(nodes), NODES: nodes, SAVED: ["primals_1", "view", "first"], "Memory Budget": 0.4
    }  # fmt: skip


GETITEM = "<built-in function getitem>"
#: A product, a norm with three outputs of which two are for its backward op, two equal masks of which torch keeps one.
GOOD = document(
    primals_1=node("primals_1"), tangents_1=node("tangents_1"), mm=node("aten.mm.default", "primals_1"),
    view=node("aten.view.default", "mm"), norm=node("aten.norm.default", "view", "primals_1"),
    first=node(GETITEM, "norm"), mean=node(GETITEM, "norm"), rstd=node(GETITEM, "norm"),
    ones=node("aten.ones.default"), where=node("aten.where.self", "ones", "first"),
    where_1=node("aten.where.self", "where", "ones"), where_2=node("aten.where.self", "tangents_1", "where_1"),
    norm_backward=node("aten.norm_backward.default", "where_2", "view", "mean", "rstd"),
    output=node("output", "where_1", "norm_backward"),
)  # fmt: skip


@pytest.fixture
def step():
    b = GraphBuilder("step", meta={"random_ops": ["where"]})
    b.op("mm", type="aten.mm.default", size=8, cost=8, phase="forward")
    b.op("norm", type="aten.norm.default", inputs=["mm"], cost=1, phase="forward",
         outputs={"norm.0": 8, "norm.1": 2, "norm.2": 2})  # fmt: skip
    b.op("ones", type="aten.ones.default", size=1, cost=1, phase="forward")
    b.op("where", type="aten.where.self", inputs=["ones", "norm.0"], size=8, cost=1, phase="forward")
    b.op("ones_1", type="aten.ones.default", size=1, cost=1, phase="forward")
    b.op("where_1", type="aten.where.self", inputs=["where", "ones_1"], size=8, cost=1, phase="forward")
    b.op("begin_backward", type="begin_backward", inputs=["where_1"], size=8, phase="loss", recomputable=False)
    b.op("where_2", type="aten.where.self", inputs=["begin_backward", "where_1"], size=8, cost=1, phase="backward")
    b.op("norm_backward", type="aten.norm_backward.default", inputs=["where_2", "mm", "norm.1", "norm.2"], size=8,
         cost=1, phase="backward")  # fmt: skip
    b.output("where_1")
    b.output("norm_backward")
    return b.build()


def read(tmp_path, graph, content):
    path = tmp_path / "min_cut_information_7.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_schedule(path, graph)


def changed(**more):
    made = copy.deepcopy(GOOD)
    made.update({key: value for key, value in more.items() if key not in GOOD[NODES]})
    made[NODES].update({key: value for key, value in more.items() if key in GOOD[NODES]})
    return made


def saving(*names):
    return {**GOOD, SAVED: list(names)}


def log(*documents):
    lines = ['V1122 08:58:56.194000 1 torch/_dynamo/x.py:1] {"str": ["a.py", 0]}']
    for each in documents:
        lines.append(
            'V1122 08:58:56.194000 1 torch/x.py:224] {"artifact": {"name": "min_cut_information", "encoding": "json"}}'
        )
        lines += ["\t" + line for line in json.dumps(each, indent=1).split("\n")]
        lines.append('V1122 08:58:56.194000 1 torch/x.py:1] {"artifact": {"name": "other"}, "has_payload": "1"}')
        lines.append('\t{"name": "min_cut_information", "a": 1}')
    return "\n".join(lines)


def test_what_is_saved_is_kept_and_the_rest_is_computed_again(tmp_path, step):
    schedule = read(tmp_path, step, GOOD)
    assert validate(step, schedule).accepted
    # the product is kept (by its view), the statistics of the norm are not: it runs again
    assert schedule.computes() == [
        "mm", "norm", "ones", "where", "ones_1", "where_1", "begin_backward", "where_2", "norm", "norm_backward"
    ]  # fmt: skip
    assert schedule.source == "torch's partitioner"
    assert schedule.meta == {"budget": 0.4, "unsafe": [], "merged": ["ones_1"]}
    # nothing of what is written in the file is a claim about random ops: that is the graph's
    again = read(tmp_path, step, saving("primals_1")).computes()
    assert again.count("mm") == again.count("norm") == 2


def test_getitems_are_outputs_by_their_readers_and_their_order(tmp_path, step):
    """Without an index: `first` is read by another op than the two others, and these are in their order."""
    everything = read(tmp_path, step, saving("mm", "mean", "rstd")).computes()
    assert len(everything) == len(step.ops)
    match = _Match(step, MinCutDocument.model_validate(GOOD).nodes)
    for names, tensors in ((["rstd"], ["norm.2"]), (["mean", "first"], ["norm.0", "norm.1"]), (["primals_1"], [])):
        assert match.saved_tensors(names) == tensors
    assert match.saved_tensors(["ones"]) == ["ones", "ones_1"]  # one that torch merged is kept with its twin
    assert match.saved_tensors(["norm"]) == ["norm.0", "norm.1", "norm.2"]
    fewer = copy.deepcopy(GOOD)
    del fewer[NODES]["rstd"]
    fewer[NODES]["norm_backward"] = node("aten.norm_backward.default", "where_2", "view", "mean")
    fewer[SAVED] = ["mm", "mean"]
    assert read(tmp_path, step, fewer).computes().count("norm") == 1  # all that it may be
    third = copy.deepcopy(GOOD)
    third[NODES] = {}
    for name, value in GOOD[NODES].items():
        third[NODES][name] = value
        if name == "rstd":
            third[NODES]["more"] = node(GETITEM, "norm")
    third[NODES]["norm_backward"] = node("aten.norm_backward.default", "where_2", "view", "mean", "rstd", "more")
    with pytest.raises(FormatError, match="saved value 'mean' may be any of 2 outputs of op 'norm'"):
        read(tmp_path, step, {**third, SAVED: ["mean"]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(mm=node("aten.addmm.default", "primals_1")), "op 'mm' is 'aten.mm.default', but 'aten.addmm.default'"),
        (changed(where_2=node("aten.where.self", "tangents_1")), "op 'where_2' reads 'where_1', but not in the file"),
        (changed(where=node("aten.where.self", "mm", "ones", "first")), "op 'where' reads 'mm' in the file, but not"),
        (changed(ones=node("aten.ones.default", "nowhere")), "'ones' reads 'nowhere', which is no node of the file"),
        (changed(ones=node("aten.ones.default", "output")), "node 'ones' reads 'output', which comes after it"),
        ({**GOOD, NODES: {}}, r"op 'mm' \('aten.mm.default'\) is not in the file: .* backend='aot_eager'"),
        ({**GOOD, NODES: {}, SAVED: [1]}, r"Min Cut Solution Saved Values\[0\] must be a string, not 1"),
        ({**GOOD, NODES: {"mm": {"target": "a"}}}, r"mm: key 'input_arguments' is missing"),
        ({**GOOD, "Memory Budget": "0.4"}, "Memory Budget must be a number, not '0.4'"),
        (saving("gone"), "the saved value 'gone' is no node of the file"),
        (log(saving("gone"), {}), "none of 2 documents min_cut_information fits: the first: the saved value 'gone' is"),
        (log({}).replace("\t{}", "\t{"), "information_7.json: min_cut_information 1: line 1, column 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, step, content, message):
    with pytest.raises(FormatError, match=message) as caught:
        read(tmp_path, step, content)
    assert "\n" not in str(caught.value)


def test_it_needs_its_graph(tmp_path):
    with pytest.raises(FormatError, match="min_cut_information can only be read together with the graph"):
        read(tmp_path, None, GOOD)


def test_a_log_of_several_graphs_in_the_shell(tmp_path, step):
    """The last document that fits; other payloads of the log that look alike are none."""
    other = {**GOOD, NODES: {}}
    expected = read(tmp_path, step, saving())
    path, graph = tmp_path / "dedicated_log_torch_trace_x.log", tmp_path / "step.json"
    path.write_text(log(GOOD, saving(), other))
    write_graph(step, graph)
    assert read_schedule(path, step) == expected != read(tmp_path, step, GOOD)
    assert main(["validate", str(graph), str(path)]) == 0
