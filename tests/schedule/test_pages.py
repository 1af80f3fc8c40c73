"""Interactive pages: data, safety of names, and behaviour in a headless browser."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, browse, embedded, needs_browser
from helpers import steps
from shell import ok

from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.graphs.layered import layered
from remat.graphs.zoo.transformers import gpt
from remat.schedule import Machine, Rules, Schedule, simulate, time_schedule, write_schedule
from remat.schedule.pages import page_data, schedule_page

HOSTILE = "</script><script>document.title='broken'</script><!--<script>"


def recomputing() -> tuple[ComputeGraph, Schedule]:
    """Return a small GPT and a schedule that recomputes one op of each layer."""
    graph = gpt(layers=3, sequence=16, width=32, heads=2, vocabulary=50)
    order = list(graph.order or ())
    for layer in range(3):
        order.insert(order.index(f"grad_layers.{layer}.mlp.up"), f"layers.{layer}.mlp.gelu")
    return graph, Schedule.from_steps([("compute", name) for name in order])


def test_data_agrees_with_the_simulation() -> None:
    graph, schedule = recomputing()
    data = embedded(schedule_page(graph, schedule, Rules(budget=10**6)))
    assert data == json.loads(json.dumps(page_data(graph, schedule, Rules(budget=10**6))))
    assert [data["ops"][op] for op in data["steps"]] == schedule.computes()
    assert data["memory"][data["peakStep"]] == data["peak"] == max(data["memory"])
    held = [0] * len(data["steps"])
    rows = zip(*(data["intervals"][key] for key in ("tensor", "start", "end")), strict=True)
    for tensor, start, end in rows:
        for step in range(start, end):
            held[step] += data["sizes"][tensor]
    work = [graph.ops[op].workspace for op in data["steps"]]
    assert [a + b for a, b in zip(held, work, strict=True)] == data["memory"]
    assert max(data["reference"]) == graph.reference_peak
    assert data["ops"][data["steps"][data["backward"]]].startswith("grad_")
    layers = [data["layers"][data["layerOf"][m]] for m in data["module"]]
    assert {"layers.0", "layers.1", "layers.2"} <= set(layers)
    assert schedule_page(graph, schedule) == schedule_page(graph, schedule)


def hostile_graph() -> ComputeGraph:
    builder = GraphBuilder(HOSTILE, meta={"modules": {"@DATA@": HOSTILE}})
    builder.op("@DATA@", size=4, cost=1)
    builder.op(HOSTILE, inputs=["@DATA@"], size=2, cost=1)
    return builder.build()


def test_names_cannot_become_markup() -> None:
    graph = hostile_graph()
    page = schedule_page(graph, Schedule.reference(graph))
    assert HOSTILE not in page and page.count("<script") == 2
    data = embedded(page)
    assert data["title"] == HOSTILE and data["ops"] == ["@DATA@", HOSTILE]


def test_page_loads_nothing() -> None:
    page = schedule_page(*recomputing())
    assert not re.search(r"https?:|//cdn|@import|\bsrc=|\bhref=", page)
    assert "default-src 'none'; script-src 'sha256-" in page


def test_violations_are_marked() -> None:
    chain = unit_chain(2)
    first, *others = Schedule.reference(chain).steps()
    broken = Schedule.from_steps([first, ("free", "f0"), ("compute", "unknown"), *others])
    data = page_data(chain, broken)
    assert data["lines"][0][0] == "fault" and data["lines"][0][1].startswith("invalid: ")
    assert [data["ops"][op] for op in data["steps"]][:2] == ["f0", "unknown"]
    assert [(step, rule) for step, _, rule in data["faults"]][:2] == [(1, "unknown op"), (2, "input not live")]
    over = page_data(chain, Schedule.reference(chain), Rules(budget=2))
    assert over["lines"][0][1].startswith("over budget: ") and over["faults"]


def test_empty_schedule_has_a_page() -> None:
    data = page_data(unit_chain(2), Schedule.from_steps([]))
    assert data["steps"] == [] and data["peakStep"] is None


@needs_browser
def test_browser_draws_and_describes(tmp_path: Path) -> None:
    """The peak first; then a tensor found by name, its reader and its recomputations; then keys and the pointer."""
    graph, schedule = recomputing()
    script = """
      const seen = [["start", element("detail").textContent]];
      const press = key => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      element("find").value = "layers.1.mlp.gelu"; find(); next();
      seen.push(["found", element("found").textContent], ["tensor", element("detail").textContent]);
      press("ArrowRight"); seen.push(["later", element("detail").textContent]);
      const wide = view.high - view.low;
      press("+"); press("+"); seen.push(["zoom", wide / (view.high - view.low)]);
      press("0"); seen.push(["all", wide / (view.high - view.low)]);
      const box = canvas.getBoundingClientRect(), at = (x, y) => new PointerEvent("pointermove",
        { clientX: box.left + x, clientY: box.top + y, pointerId: 7, bubbles: true });
      draw(); canvas.dispatchEvent(at(300, 100)); seen.push(["hover", element("detail").textContent]);
      const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data, colours = new Set();
      for (let k = 0; k < pixels.length; k += 4) colours.add(pixels.slice(k, k + 3).join());
      seen.push(["colours", ["86,180,233", "213,94,0"].filter(each => colours.has(each)).length]);
      document.title = JSON.stringify(Object.fromEntries(seen));
    """
    shown = browse(schedule_page(graph, schedule, Rules(budget=10**6)), script, tmp_path)
    assert "data-milliseconds" in shown["body"]
    seen = json.loads(shown["title"])
    first = schedule.computes().index("layers.1.mlp.gelu")
    again = schedule.computes().index("layers.1.mlp.gelu", first + 1)
    assert f"step{page_data(graph, schedule)['peakStep']}" in seen["start"]
    assert seen["found"].startswith("1 of ")
    assert "layers.1.mlp.gelu" in seen["tensor"] and f"1 time: at step {again}" in seen["tensor"]
    assert f"step{first + 1}" in seen["later"] and "alive for" in seen["later"]
    assert (seen["zoom"], seen["all"], seen["colours"]) == (4, 1, 2)
    assert "held" in seen["hover"] and seen["hover"] != seen["later"]


MOVED = steps("f0 f1 >f0 -f0 loss g1 -loss -f1 <f0 g0")


def test_data_of_a_machine_agrees_with_the_timing() -> None:
    """Times follow from costs and waits; the host holds the copy from its offload to the compute that reads it."""
    graph = replace(unit_chain(2), cost_unit="us")
    rules = Rules(budget=3, machine=Machine(500_000, 10**6, host=1))
    data = page_data(graph, MOVED, rules)
    timing = time_schedule(simulate(graph, MOVED), Machine(500_000, 10**6, host=1))
    clock, moves = data["clock"], data["clock"]["transfers"]
    assert sum(data["costs"]) + sum(clock["waits"]["length"]) == timing.time
    assert clock["waits"] == {"step": [2, 4], "length": [2, 1]} and clock["unit"] == "µs"
    assert (moves["tensor"], moves["back"]) == ([graph.tensor_index["f0"]] * 2, [1])
    assert list(zip(moves["start"], moves["length"], strict=True)) == [(2, 2), (6, 1)]
    assert data["host"] == {"step": [2], "bytes": [1], "peak": 1, "limit": 1}
    assert "1 bytes on the host; 60 % more time than each op once, 37.5 % of the time waiting" in data["lines"][0][1]
    without = page_data(graph, MOVED)
    assert without["clock"] is None and without["host"]["limit"] is None
    assert page_data(graph, steps("f0 <f0 f1"), rules)["clock"] is None  # not valid: no times


#: Script that finds the tensor f0 and, with a machine, points at its transfers on both axes.
FIND_TRANSFERS = """
      const colours = () => {
        const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data, found = new Set();
        for (let k = 0; k < pixels.length; k += 4) found.add(pixels.slice(k, k + 3).join());
        return found;
      };
      element("find").value = "f0"; find(); next(); draw();
      const seen = ["0,158,115", "213,94,0"].map(colour => colours().has(colour));
      seen.push(element("legend").textContent, element("detail").textContent);
      if (data.clock) {
        const texts = [], fill = pen.fillText.bind(pen);
        pen.fillText = (text, x, y) => { texts.push([text, x, y]); fill(text, x, y); };
        for (const axis of ["time", "steps"]) {
          draw();
          const [write, read] = axis === "time" ? [3, 6.5] : [2.4, 4.2];
          for (const [link, value] of [["to host", write], ["from host", read]]) {
            picture.point(toPixel(value), texts.findLast(each => each[0] === link)[2]);
            seen.push(element("detail").textContent);
          }
          document.querySelector("#extra button").click();
        }
        seen.push(colours().has("102,102,102"), texts.map(each => each[0]).find(text => text.startsWith("host")));
      }
      document.title = JSON.stringify(seen);
"""


def test_fetched_copies_have_intervals_of_their_own() -> None:
    held = embedded(schedule_page(unit_chain(2), MOVED))["intervals"]
    (copy,) = held["fetched"]
    assert (held["start"][copy], held["end"][copy]) == (4, 5)


@pytest.mark.slow
@needs_browser
def test_browser_shows_fetched_copies_without_a_machine(tmp_path: Path) -> None:
    page = schedule_page(unit_chain(2), MOVED)
    green, orange, legend, detail = json.loads(browse(page, FIND_TRANSFERS, tmp_path)["title"])
    assert (green, orange) == (True, False) and "fetched from the host" in legend
    assert "fetched1 time: before step 4" in detail and "recomputednever" in detail


@needs_browser
def test_browser_shows_transfers_of_a_machine(tmp_path: Path) -> None:
    """Fetched copies are no recomputations; transfers have a track, and the pointer describes them."""
    timed = replace(unit_chain(2), cost_unit="us")
    page = schedule_page(timed, MOVED, Rules(machine=Machine(500_000, 10**6)))
    green, orange, legend, detail, out, back, out_again, back_again, grey, host = json.loads(
        browse(page, FIND_TRANSFERS, tmp_path)["title"]
    )
    assert (green, orange) == (True, False)
    assert "written to the host" in legend and "the device waits" in legend
    assert "writtenfrom 2 µs to 4 µs" in detail
    assert "write of f0 to the hostbytes1 bytes" in out and "the device waits 2 µs of it" in out
    assert "read of f0 from the hostbytes1 bytestime1 µs, from 6 µs to 7 µs" in back
    assert "waits 1 µs before it, until the read of f0 from the host ends" in back
    assert (out_again, back_again) == (out, back) and grey and host == "host, at most 1 bytes"


@pytest.mark.slow  # what the page embeds has a quick test
@needs_browser
def test_browser_shows_hostile_names_as_text(tmp_path: Path) -> None:
    graph = hostile_graph()
    page = schedule_page(graph, Schedule.reference(graph))
    shown = browse(page, "element('find').value = '<'; find(); next();", tmp_path)
    assert shown["title"] == HOSTILE
    assert HOSTILE in shown["detail"]


def test_command_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph, schedule = recomputing()
    write_graph(graph, "g.json")
    write_schedule(schedule, "s.json")
    shown = ok("view g.json s.json --budget 200% -o page.html")
    assert (shown.out, shown.err) == ("", "")
    assert embedded(Path("page.html").read_text())["budget"] == 2 * graph.reference_peak
    ok("view g.json -o order.html")  # the reference order
    assert embedded(Path("order.html").read_text())["reference"] is None
    over = ok("view g.json s.json --budget 50% -o page.html")
    assert "budget" in over.err and over.err.count("\n") == 1
    refused = ok("view g.json s.json -o page.png", code=2)
    assert ".html" in refused.err and refused.err.count("\n") == 1
    assert "overwrite" in ok("view g.json page.html -o page.html", code=2).err


@pytest.mark.slow
def test_ten_thousand_ops_take_less_than_two_megabytes(tmp_path: Path) -> None:
    """Each second tensor is written to the host, and read once more."""
    graph = replace(layered(10_000, seed=1), cost_unit="ns")
    moved = set(graph.tensor_names[::2])
    order = [graph.ops[op] for op in graph.arrays.order]
    words = [step for op in order for step in (("compute", op.name), *(("offload", t) for t in moved & {*op.outputs}))]
    back = [step for op in order for t in moved & {*op.outputs} for step in (("free", t), ("fetch", t))]
    page = schedule_page(graph, Schedule.from_steps([*words, *back]), Rules(machine=Machine(10**9, 10**9)))
    assert len(embedded(page)["clock"]["transfers"]["tensor"]) == 10_000
    assert len(page) < 2_000_000
    if CHROMIUM:
        shown = browse(page, "all();", tmp_path)
        assert float(re.findall(r'data-milliseconds="([\d.]+)"', shown["body"])[0]) < 1000


@needs_browser
def test_browser_shows_long_lived_tensors_and_joins_narrow_bands(tmp_path: Path) -> None:
    """A large tensor that is freed at once has no row among many that are held for long."""
    builder = GraphBuilder("many", meta={"modules": {f"a{k}": f"layers.{k}" for k in range(400)}})
    for k in range(400):
        builder.op(f"a{k}", inputs=[f"a{k - 1}"] if k else [], outputs={f"a{k}": 10, f"big{k}": 100}, cost=1)
    builder.op("last", inputs=[f"a{k}" for k in range(400)], size=1, cost=1)
    graph = builder.build()
    script = """
      const texts = [], fill = pen.fillText.bind(pen);
      pen.fillText = (text, x, y) => { texts.push(text); fill(text, x, y); };
      draw();
      const box = canvas.getBoundingClientRect();
      picture.point(box.width / 2, box.height - 20);
      document.title = JSON.stringify([texts, element("detail").textContent]);
    """
    texts, detail = json.loads(browse(schedule_page(graph, Schedule.reference(graph)), script, tmp_path)["title"])
    assert any(re.fullmatch(r"\d+ of 801 tensors, by bytes × steps", text) for text in texts)
    bands = [text for text in texts if re.fullmatch(r"layers\.\d+–\d+", text)]
    assert bands and bands[0].startswith("layers.0–")
    assert re.search(r"tensora\d+, 10 bytes", detail)
