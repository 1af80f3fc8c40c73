import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

import remat.registry
from remat.graphs import ComputeGraph, Op, Tensor, graph_formats, read_graph, write_graph
from remat.graphs.families import unit_chain
from remat.graphs.formats import base as formats
from remat.graphs.formats.dot import graph_to_dot

ROOT = Path(__file__).resolve().parents[2]


def test_built_in_formats_are_the_registered_ones():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][graph_formats.group] == formats.BUILT_IN
    assert [f.name for f in graph_formats()] == list(formats.BUILT_IN)


def test_content_selects_the_reader_and_suffix_the_writer(tmp_path):
    write_graph(unit_chain(2), tmp_path / "g.json")
    (tmp_path / "g.json").rename(tmp_path / "g.dot")
    assert read_graph(tmp_path / "g.dot") == read_graph(str(tmp_path / "g.dot")) == unit_chain(2)
    for name in ("g.dot", "g.GV"):
        write_graph(unit_chain(2), tmp_path / name)
        assert (tmp_path / name).read_text() == graph_to_dot(unit_chain(2))
    for name in ("g.txt", "g"):
        with refused("format.suffix"):
            write_graph(unit_chain(2), tmp_path / name)
    with refused("format.not-written"):
        write_graph(unit_chain(2), tmp_path / "missing" / "g.json")


def test_unreadable_files(tmp_path):
    with refused("format.no-file"):
        read_graph(tmp_path / "absent.json")
    with refused("format.no-file"):
        read_graph(tmp_path)
    (tmp_path / "s.json").write_text('{"format": "remat-schedule"}')
    with refused("format.unknown", culprit=f"{tmp_path / 's.json'}: a schedule, not a graph"):
        read_graph(tmp_path / "s.json")


def test_third_party_format(tmp_path, monkeypatch):
    module = tmp_path / "lines_format.py"
    module.write_text(
        "from remat.graphs import GraphFormat, single_output_graph\n"
        "def read(source):\n"
        "    nodes = {line: (1, 1) for line in source.text.splitlines()[1:]}\n"
        "    return single_output_graph('lines', nodes, [])\n"
        "FORMAT = GraphFormat('lines', '', ('.lines',), lambda s: s.data.startswith(b'LINES'), read,\n"
        "                     lambda g: 'LINES\\n' + '\\n'.join(g.order))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entries = [EntryPoint("lines", "lines_format:FORMAT", graph_formats.group)]
    monkeypatch.setattr(remat.registry, "entry_points", lambda: EntryPoints(entries))
    write_graph(unit_chain(1), tmp_path / "g.lines")
    assert read_graph(tmp_path / "g.lines").op_names == ("f0", "loss", "g0")

    # A broken plug-in does not affect the formats before it, and is named when no other format recognises the file.
    entries[:] = [EntryPoint("broken", "no_such_module:FORMAT", graph_formats.group)]
    monkeypatch.setattr(remat.registry, "entry_points", lambda: EntryPoints(entries))  # clears the cache
    write_graph(unit_chain(1), tmp_path / "g.json")
    assert read_graph(tmp_path / "g.json") == unit_chain(1)
    with refused("format.unknown", culprit="broken"):
        read_graph(tmp_path / "g.lines")
    entries[:] = [EntryPoint("odd", "json:dumps", graph_formats.group)]
    monkeypatch.setattr(remat.registry, "entry_points", lambda: EntryPoints(entries))  # clears the cache
    with refused("format.unknown", culprit="odd"):
        read_graph(tmp_path / "g.lines")


def unescaped(quoted: str) -> str:
    """Unescape a quoted string as Graphviz does: first the lexer, then the label's escapes and entities."""
    assert quoted[0] == quoted[-1] == '"'
    text, out = quoted[1:-1].replace('\\"', '"'), []
    position = 0
    while position < len(text):
        if text[position] == "\\":
            out.append({"n": "\n", "\\": "\\"}[text[position + 1]])
            position += 1
        else:
            out.append(text[position])
        position += 1
    return "".join(out).replace("&amp;", "&")


@given(st.text(min_size=1, max_size=8).filter(str.isprintable) | st.text(alphabet='a\\"&;{}<>|n', min_size=1))
def test_dot_escapes_names(name):
    graph = ComputeGraph("g", [Tensor(name, 3)], [Op(name, outputs=(name,), cost=2, workspace=1)], cost_unit="us")
    line = next(line for line in graph_to_dot(graph).splitlines() if line.startswith("  o0"))
    quoted = line.removeprefix("  o0 [label=").removesuffix(', fillcolor="#f4f4f4"];')
    inner = quoted[1:-1]
    assert all(inner[:i].endswith("\\") for i, c in enumerate(inner) if c == '"')
    assert unescaped(quoted) == f"{name}\ncost 2 us\n3 B + 1 B"


def test_dot_of_buffers_inputs_and_several_outputs():
    graph = ComputeGraph(
        "g",
        [Tensor("in", 1), Tensor("x", 2), Tensor("y", 3), Tensor("sum", 4), Tensor("z", 5)],
        [
            Op("a", ("in",), ("x", "y"), phase="forward"),
            Op("b", ("x",), ("sum",)),
            Op("c", ("y",), ("sum",)),
            Op("d", ("sum",), ("z",), phase="backward"),
        ],
        inputs=["in"],
        outputs=["z"],
    )
    lines = [line.strip() for line in graph_to_dot(graph).splitlines()]
    assert {line for line in lines if "->" in line} == {
        "o0 -> t1;", "o0 -> t2;", "o1 -> t3;", "o2 -> t3;", "t0 -> o0;", "t1 -> o1;", "t2 -> o2;", "t3 -> o3;",
    }  # fmt: skip
    assert sum("shape=ellipse" in line for line in lines) == 4
    assert [line[:2] for line in lines if "peripheries=2" in line] == ["o3"]
    assert len({line.split("fillcolor=")[1][:9] for line in lines if line.startswith("o") and "label" in line}) == 3
