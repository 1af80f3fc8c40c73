"""HLO text as graphs and schedules: views, clones of rematerialisation, costs, and untrusted texts."""

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
from helpers import at_most
from refusals import refused

from remat.errors import FormatError, FormatRemark, GraphError, ScheduleError
from remat.graphs import Source, read_graph
from remat.graphs.convolutions import kernel_uses
from remat.graphs.formats.hlo import FORMAT, program_from_text
from remat.graphs.formats.hlo.shapes import ShapeReader, array_shape, arrays
from remat.schedule import Rule, Schedule, read_schedule, simulate, validate, write_schedule
from remat.schedule.formats.hlo import schedule_of_program
from tests.schedule.schedule_oracle import random_valid_steps


def module(*lines: str, before: str = "", header: str = ", is_scheduled=true") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m{header}\n\n{before}\nENTRY %main {{\n{body}\n}}\n"


ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""

XLA = Path(__file__).parent / "xla"

#: A wide value is read early and late, and narrow values in between; XLA recomputes the wide one.
REMAT = module(
    "%x = f32[4]{0} parameter(0)",
    "%wide.1 = f32[1024]{0} broadcast(%x), dimensions={0}",
    "%neg = f32[1024]{0} negate(%wide.1)",
    "%part = f32[4]{0} slice(%neg), slice={[0:4]}",
    "%big = f32[4096]{0} broadcast(%part), dimensions={0}",
    "%cut = f32[4]{0} slice(%big), slice={[0:4]}",
    '%wide.1.remat = f32[1024]{0} broadcast(%x), dimensions={0}, metadata={op_name="again"}',
    "%neg.remat = f32[1024]{0} negate(%wide.1.remat)",
    "%last = f32[1024]{0} add(%neg.remat, %wide.1.remat), control-predecessors={%cut}",
    "%small = f32[4]{0} slice(%last), slice={[0:4]}",
    "%wide.1.remat2 = f32[1024]{0} broadcast(%x), dimensions={0}",
    "%wide.1.remat.1.remat = f32[1024]{0} broadcast(%x), dimensions={0}",
    "%sum = f32[1024]{0} add(%wide.1.remat2, %wide.1.remat.1.remat)",
    "ROOT %all = (f32[4]{0}, f32[1024]{0}) tuple(%small, %sum)",
)


def test_clones_are_recomputations_of_their_base(tmp_path):
    program = program_from_text(REMAT)
    graph = program.graph
    assert graph.op_names == ("wide.1", "neg", "part", "big", "cut", "last", "small", "sum")
    assert program.steps == (
        "wide.1", "neg", "part", "big", "cut", "wide.1", "neg", "last", "small", "wide.1", "wide.1", "sum",
    )  # fmt: skip
    assert program.remarks == ("1 values are read of which there is a newer copy; the two copies are counted once",)
    assert (graph.constant_memory, set(graph.outputs)) == (16, {"small", "sum"})
    path = tmp_path / "m.txt"
    path.write_text(REMAT)
    with pytest.warns(FormatRemark, match="m.txt: 1 values are read"):
        schedule = read_schedule(path, read_graph(path))
    found = validate(graph, schedule)
    assert found.accepted
    assert found.recomputations == 4
    # by hand: without clones, wide.1 and neg are alive with part and big (4096 + 4096 + 16 + 16384 bytes)
    assert validate(graph, Schedule.reference(graph)).peak == 24592
    assert found.peak == 16400
    assert read_schedule(path) == schedule


#: A fusion and a view of it; clones of the fusion call clones of its computation.
FUSED = module(
    "x = f32[8] parameter(0)",
    "f = f32[8] fusion(x), kind=kLoop, calls=fc",
    "v = f32[2,4] bitcast(f)",
    "g = f32[2,4] negate(v), control-predecessors={f}",
    "ROOT h = f32[2,4] add(/*first*/v, g)",
    before="fc {\n  p = f32[8] parameter(0)\n  ROOT n = f32[8] negate(p)\n}\n",
)


@pytest.mark.parametrize("name", ["clones", "fusion", "after", "before"])
def test_modules_written_for_random_schedules(tmp_path, name):
    """Random schedules are read back with the same steps of the same ops, and XLA itself parses the text."""
    path, out = tmp_path / "m.hlo", tmp_path / "out.hlo"
    path.write_text({"clones": REMAT, "fusion": FUSED}.get(name) or (XLA / f"{name}_rematerialization.txt").read_text())
    program = program_from_text(path.read_text())
    graph = program.graph
    for seed in range(6):
        steps = random_valid_steps(Random(seed), graph, frees=False)
        schedule = Schedule.from_steps(steps)
        write_schedule(schedule, out, "hlo", graph, model=path)
        again = program_from_text(out.read_text())
        assert list(again.steps) == schedule.computes()
        assert again.is_scheduled
        assert set(again.graph.ops) == set(graph.ops)
        assert set(again.graph.tensors) == set(graph.tensors)
        assert (set(again.graph.outputs), again.graph.constant_memory) == (set(graph.outputs), graph.constant_memory)
        if find_spec("jaxlib"):
            from jaxlib import _hlo

            _hlo.hlo_module_from_text(out.read_text())
    write_schedule(schedule_of_program(program), out, "hlo", graph, model=path)
    assert program_from_text(out.read_text()).steps == program.steps


def test_text_of_a_written_module(tmp_path):
    path, out = tmp_path / "m.hlo", tmp_path / "out.hlo"
    path.write_text(FUSED.replace(", is_scheduled=true", ", entry_computation_layout={}"))
    write_schedule(Schedule.from_steps([("compute", op) for op in "fgffh"]), out, "hlo", model=path)
    head, computations = out.read_text().split("\n\n", 1)
    assert head == "HloModule m, is_scheduled=true, entry_computation_layout={}"
    assert computations.count("  ROOT n = f32[8] negate(p)") == 3
    assert [line.strip() for line in computations.split("ENTRY")[1].split("\n")[1:-2]] == [
        "x = f32[8] parameter(0)",
        "f = f32[8] fusion(x), kind=kLoop, calls=fc",
        "v = f32[2,4] bitcast(f)",
        "g = f32[2,4] negate(v), control-predecessors={f}",
        "f.remat = f32[8] fusion(x), kind=kLoop, calls=fc.clone",
        "f.remat2 = f32[8] fusion(x), kind=kLoop, calls=fc.clone2",
        "v.remat = f32[2,4] bitcast(f.remat2)",
        "ROOT h = f32[2,4] add(v.remat, g)",
    ]


def test_schedules_that_cannot_be_written(tmp_path, monkeypatch):
    path, out = tmp_path / "m.hlo", tmp_path / "out.hlo"
    path.write_text(FUSED)
    schedule = Schedule.from_steps([("compute", op) for op in "fgh"])
    again = Schedule.from_steps([("compute", op) for op in "fgfh"])
    with monkeypatch.context() as patch, refused("format.hlo-clones"):  # a writer that loses the clones
        patch.setattr("remat.schedule.formats.hlo.scheduled_text", lambda text, _: text)
        write_schedule(again, out, "hlo", model=path)
    with refused("format.needs-model"):
        write_schedule(schedule, out, "hlo")
    out.write_text("{}")
    with refused("format.hlo-model", culprit="out.hlo"):
        write_schedule(schedule, out, "hlo", model=out)
    with refused("format.frees"):
        write_schedule(Schedule.from_steps([*schedule.steps(), ("free", "g")]), out, "hlo", model=path)
    with refused("schedule.not-valid", ScheduleError, culprit="'g'"):
        write_schedule(Schedule.from_steps([("compute", op) for op in "gfh"]), out, "hlo", model=path)
    loop = module(
        "x = f32[4] parameter(0)",
        "i = s32[] constant(0)",
        "both = (s32[], f32[4]) tuple(i, x)",
        "w = (s32[], f32[4]) while(both), condition=c, body=b",
        "y = f32[4] get-tuple-element(w), index=1",
        "n = f32[4] negate(y)",
        "k = s32[] get-tuple-element(w), index=0",
        "ROOT t = (f32[4], s32[]) tuple(n, k)",
        before="b {\n  p = (s32[], f32[4]) parameter(0)\n  j = s32[] get-tuple-element(p), index=0\n"
        "  k = s32[] negate(j)\n  z = f32[4] get-tuple-element(p), index=1\n"
        "  ROOT q = (s32[], f32[4]) tuple(k, z)\n}\n"
        "c {\n  p = (s32[], f32[4]) parameter(0)\n  ROOT f = pred[] constant(false)\n}\n",
    )
    path.write_text(loop)
    write_schedule(Schedule.from_steps([("compute", op) for op in "wn"]), out, "hlo", model=path)
    with refused("format.hlo-order", culprit="w"):  # what it reads passes through the loop unchanged
        write_schedule(Schedule.from_steps([("compute", op) for op in "nw"]), out, "hlo", model=path)


def test_clone_that_differs_from_its_base_is_another_op():
    other = REMAT.replace("%neg.remat = f32[1024]{0} negate", "%neg.remat = f32[1024]{0} cosine")
    program = program_from_text(other)
    assert "neg.remat" in program.graph.op_index
    assert "neg.remat does something else than neg" in program.remarks[0]
    assert validate(program.graph, schedule_of_program(program)).accepted
    # other operands, other shapes, other attributes, other constants
    base = ("x = f32[4] parameter(0)", "y = f32[4] parameter(1)", "a = f32[4] add(x, x)")
    for clone in ("a.remat = f32[4] add(x, y)", "a.remat = f64[4] add(x, x)", "a.remat = f32[4] add(x, x), k=1"):
        found = program_from_text(module(*base, "ROOT r = f32[4] negate(a)", clone))
        assert found.steps == ("a", "r", "a.remat"), clone
    one, two = "c = f32[] constant(1)", "c.remat = f32[] constant(2)"
    found = program_from_text(module(one, two, "a = f32[] cosine(c)", "ROOT a.remat = f32[] cosine(c.remat)"))
    assert found.steps == ("a", "a.remat")
    same = two.replace("(2)", "(1)")
    found = program_from_text(module(one, same, "a = f32[] cosine(c)", "ROOT a.remat = f32[] cosine(c.remat)"))
    assert found.steps == ("a", "a")


def test_clones_without_a_base_and_clones_of_views():
    text = module(
        "x = f32[8] parameter(0)",
        "a.remat = f32[8] negate(x)",
        "v.remat = f32[2,4] bitcast(a.remat)",
        "b = f32[2,4] exponential(v.remat)",
        "a.remat2 = f32[8] negate(x)",
        "v.remat2 = f32[2,4] bitcast(a.remat2)",
        "ROOT c = f32[2,4] add(v.remat2, b)",
        "d.remat_compressed = f32[2,4] copy(v.remat)",
    )
    program = program_from_text(text)
    assert program.steps == ("a", "b", "a", "c", "d.remat_compressed")
    assert not program.remarks


def test_clone_of_a_fusion_calls_a_clone_of_its_computation():
    fused = "{0} {{\n  p{1} = f32[8] parameter(0)\n  ROOT n{1} = f32[8] {2}(p{1})\n}}\n"
    text = module(
        "x = f32[8] parameter(0)",
        "f = f32[8] fusion(x), kind=kLoop, calls=fc",
        "g = f32[8] negate(f)",
        "f.remat = f32[8] fusion(x), kind=kLoop, calls=fc.clone",
        "ROOT h = f32[8] add(f.remat, g)",
        before=fused.format("fc", 1, "negate") + fused.format("fc.clone", 2, "negate"),
    )
    assert program_from_text(text).steps == ("f", "g", "f", "h")
    assert program_from_text(text.replace("n2 = f32[8] negate", "n2 = f32[8] cosine")).steps[2] == "f.remat"


def test_repeated_random_number_generator_is_not_recomputable():
    again = module(
        "x = f32[] parameter(0)",
        "r = f32[8] rng(x, x), distribution=rng_uniform",
        "ROOT r.remat = f32[8] rng(x, x), distribution=rng_uniform",
    )
    program = program_from_text(again)
    found = validate(program.graph, schedule_of_program(program))
    assert (found.first.rule, found.first.op) == (Rule.NOT_RECOMPUTABLE, "r")


@pytest.mark.parametrize("seed", range(20))
def test_random_clones_do_not_change_the_graph(seed):
    """Clones at random places, also of clones, some of them read; the schedule is valid."""
    random = Random(seed)
    plain, cloned, steps = ["p = f32[16] parameter(0)"], ["p = f32[16] parameter(0)"], []
    names_of = {"p": ["p"]}  # names of each value
    wrote: list[tuple[str, str, list[str]]] = []
    for number in range(30):
        name = f"op.{number}" if number % 3 else f"a{number}"
        read = random.choices(list(names_of)[-8:], k=2)
        opcode = random.choice(["add", "multiply"])
        shape = f"f32[{random.randint(1, 64)}]"
        for lines, names in ((plain, read), (cloned, [random.choice(names_of[r]) for r in read])):
            lines.append(f"{name} = {shape} {opcode}({names[0]}, {names[1]})")
        names_of[name] = [name]
        steps.append(name)
        wrote.append((name, f"{shape} {opcode}", read))
        while random.random() < 0.5:
            base, does, read = random.choice(wrote)
            count = len(names_of[base])
            clone = (
                f"{base}.remat{count if count > 1 else ''}" if random.random() < 0.5 else f"{base}.remat.{count}.remat"
            )
            names = [random.choice(names_of[r]) for r in read]
            if clone not in names_of[base]:
                cloned.append(f"{clone} = {does}({names[0]}, {names[1]})")
                names_of[base].append(clone)
                steps.append(base)
    root = f"ROOT out = f32[1] add({wrote[-1][0]}, a0)"
    program = program_from_text(module(*cloned, root))
    assert list(program.steps) == [*steps, "out"]
    assert program.graph.digest == program_from_text(module(*plain, root)).graph.digest
    assert validate(program.graph, schedule_of_program(program)).accepted


# -- shapes ------------------------------------------------------------------------------------------------------


def test_bytes_of_shapes():
    for text, size in (
        ("f32[]", 4), ("pred[7]{0}", 7), ("bf16[2,3]{1,0}", 12), ("c128[2]", 32), ("f32[0,5]", 0),
        ("f8e4m3fn[3,3]{1,0}", 9), ("s4[3,3]{1,0:E(4)}", 5), ("f32[<=10,5]{1,0}", 200),
        ("f32[10,200]{1,0:T(8,128)}", 16 * 256 * 4), ("f32[10,200]{0,1:T(8,128)}", 200 * 128 * 4),
        ("bf16[10,200]{1,0:T(8,128)(2,1)S(1)}", 16 * 256 * 2), ("f32[18]{0:T(256)}", 1024),
        ("f32[5]{0:T(8,128)}", 8 * 128 * 4), ("(f32[2]{0}, (s8[3]{0}, /*index=2*/token[]), ())", 11),
    ):  # fmt: skip
        shape, end = ShapeReader(text).read(0)
        assert (sum(array.size for array in arrays(shape)), end) == (size, len(text)), text


def test_invalid_shapes():
    for text in ("q7[3]", "f32[?,5]", "f32[-1]", "f32[99999999999999999999]", f"f32[{'1,' * 80}1]", "f32", "(f32[1]",
                 "(" * 50_000, "f32[2,3]{2,0:T(8,128)}", "f32[2,3]{1,0:T(0,128)}"):  # fmt: skip
        with refused("format.hlo-shape"):
            ShapeReader(text).read(0)
    assert array_shape("s4", "3,3", "").size == 9


# -- views, calls and pairs ------------------------------------------------------------------------------------------


def test_views_are_no_ops_and_parameters_are_constant_memory():
    program = program_from_text(
        module(
            "%p = (f32[8]{0}, f32[2]{0}) parameter(0)",
            "%w = f32[8]{0} get-tuple-element((f32[8]{0}, f32[2]{0}) %p), index=0",
            '%two = (f32[8]{0}, s32[8]{0}) custom-call(%w), custom_call_target="TopK"',
            "%t = ((f32[8]{0}, s32[8]{0}), f32[8]{0}) tuple(%two, %w)",
            "%in = (f32[8]{0}, s32[8]{0}) get-tuple-element(%t), index=0",
            "%i = s32[8]{0} get-tuple-element(%in), index=1",
            "%v = s32[2,4]{1,0} bitcast(%i)",
            "%n = s32[2,4]{1,0} negate(%v)",
            "ROOT %r = (s32[2,4]{1,0}, f32[8]{0}, s32[8]{0}) tuple(%n, %w, /*index=2*/%i)",
        )
    )
    graph = program.graph
    assert [(op.name, op.inputs) for op in graph.ops] == [("two", ()), ("n", ("two{1}",))]
    assert graph.outputs == ("n", "two{1}")
    assert graph.constant_memory == 40
    assert graph.tensor_names == ("two{0}", "two{1}", "n")


BODY = """
%body (s: (s32[], f32[8], f32[64])) -> (s32[], f32[8], f32[64]) {
  %s = (s32[], f32[8]{0}, f32[64]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %c = f32[8]{0} get-tuple-element(%s), index=1
  %w = f32[64]{0} get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %wide = f32[64]{0} multiply(%w, %w)
  %d = f32[8]{0} slice(%wide), slice={[0:8]}
  ROOT %t = (s32[], f32[8]{0}, f32[64]{0}) tuple(%j, %d, %w)
}

%test (s.1: (s32[], f32[8], f32[64])) -> pred[] {
  %s.1 = (s32[], f32[8]{0}, f32[64]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i.1, %n), direction=LT
}
"""


def test_loop_is_one_op():
    lines = (
        "%w = f32[64]{0} parameter(0)",
        "%x = f32[8]{0} parameter(1)",
        "%zero = s32[] constant(0)",
        "%big = f32[64]{0} exponential(%w)",
        "%t = (s32[], f32[8]{0}, f32[64]{0}) tuple(%zero, %x, %big)",
        "%loop = (s32[], f32[8]{0}, f32[64]{0}) while(%t), condition=%test, body=%body, "
        'backend_config={"known_trip_count":{"n":"5"}}',
        "%c = f32[8]{0} get-tuple-element(%loop), index=1",
        "%same = f32[64]{0} get-tuple-element(%loop), index=2",
        "ROOT %r = (f32[8]{0}, f32[64]{0}) tuple(%c, %same)",
    )
    program = program_from_text(module(*lines, before=BODY))
    big, loop = program.graph.ops
    assert loop.inputs == ("big",)
    assert loop.outputs == ("loop{0}", "loop{1}")  # the third goes through unchanged
    assert set(program.graph.outputs) == {"loop{1}", "big"}
    # one iteration: add 1, multiply 64, slice 8 and the test 1; meanwhile it holds the counter or `wide`
    assert (loop.cost, loop.workspace, big.cost) == (5 * (1 + 64 + 8 + 1), 256, 64)
    unknown = program_from_text(module(*lines, before=BODY).replace('{"n":"5"}', '{"n":"?"}'))
    assert unknown.graph.ops[1].cost == 74
    assert "loop: the number of its iterations is not said" in unknown.remarks[0]
    inside = BODY.replace("  %d = ", "  %wide.remat = f32[64]{0} multiply(%w, %w)\n  %d = ")
    hidden = program_from_text(module(*lines, before=inside))
    assert "1 recomputations inside" in hidden.remarks[0]


def test_conditional_costs_its_most_expensive_branch():
    branches = """
a { xa = f32[4] parameter(0)
  ROOT na = f32[4] negate(xa)
}
b { xb = f32[4] parameter(0)
  tb = f32[4] negate(xb)
  ROOT nb = f32[4] cosine(tb)
}
""".replace("{ x", "{\n  x")
    program = program_from_text(
        module(
            "p = pred[] parameter(0)",
            "x = f32[4] parameter(1)",
            "ROOT c = f32[4] conditional(p, x, x), branch_computations={a, b}",
            before=branches,
        )
    )
    assert (program.graph.ops[0].cost, program.graph.ops[0].workspace) == (8, 16)


@pytest.mark.parametrize(
    ("start", "done"),
    [
        ("(f32[64], f32[64], u32[]) copy-start(a)", "copy-done"),
        ("(f32[64], f32[64]) all-gather-start(a), channel_id=1", "all-gather-done"),
        ("f32[64] all-reduce-start(a), to_apply=add", "all-reduce-done"),
        ("((f32[64]), f32[64], s32[]) async-start(a), calls=neg", "async-done"),
    ],
)
def test_operands_of_an_asynchronous_pair_live_until_it_is_done(start, done):
    wrapped = "neg {\n  q = f32[64] parameter(0)\n  ROOT n = f32[64] negate(q)\n}\n"
    program = program_from_text(
        module(
            "x = f32[64] parameter(0)",
            "a = f32[64] negate(x)",
            f"s = {start}",
            "between = f32[8] slice(x)",
            f"d = f32[64] {done}(s)",
            "v = f32[8,8] bitcast(d)",
            "ROOT z = f32[8,8] add(v, v)",
            before=ADD + wrapped,
        )
    )
    graph = program.graph
    assert program.steps == ("a", "s", "between", "d", "z")
    held = 256 if done == "all-reduce-done" else 512  # operand and result
    more = sum(t.size for t in graph.tensors if t.name in ("s{1}", "s{2}") and t.size == 4)
    assert simulate(graph, schedule_of_program(program)).memory.tolist()[2] == held + more + 32
    assert "d{done}" in graph.ops[4].inputs  # no order has the reader before the end of the transfer
    reads = next(op for op in graph.ops if op.name == "d").inputs
    assert ("a" in reads) == (done != "all-reduce-done")


def test_send_and_recv():
    program = program_from_text(
        module(
            "x = f32[4] parameter(0)",
            "t = token[] after-all()",
            "s = (f32[4], u32[], token[]) send(x, t), channel_id=1",
            "sd = token[] send-done(s), channel_id=1",
            "r = (f32[4], u32[], token[]) recv(sd), channel_id=2",
            "rd = (f32[4], token[]) recv-done(r), channel_id=2",
            "ROOT y = f32[4] get-tuple-element(rd), index=0",
        )
    )
    assert program.steps == ("t", "s", "sd", "r", "rd")
    assert not any(op.recomputable for op in program.graph.ops[1:])
    assert set(program.graph.outputs) == {"r{0}", "rd{done}"}


def test_control_predecessors_come_first():
    text = module(
        "x = f32[4] parameter(0)",
        "a = f32[4] negate(x)",
        "b = f32[4] cosine(x), control-predecessors={a}",
        "ROOT c = f32[4] add(a, b)",
    )
    graph = program_from_text(text).graph
    assert graph.ops[1].inputs == ("a{before}",)
    assert graph.tensors[graph.tensor_index["a{before}"]].size == 0


def test_host_memory_does_not_count():
    program = program_from_text(
        module(
            "x = f32[64]{0} parameter(0)",
            "a = f32[64]{0} negate(x)",
            "h = f32[64]{0:S(5)} copy(a)",
            "ROOT b = f32[64]{0} copy(h)",
        )
    )
    assert [t.size for t in program.graph.tensors] == [256, 0, 256]
    assert "memory of the host" in program.remarks[0]


# -- costs -------------------------------------------------------------------------------------------------------


def cost(*lines, before=""):
    return program_from_text(module(*lines, before=before)).graph.ops[-1].cost


def test_costs_of_products_and_convolutions():
    two = ("a = f32[5,7,16] parameter(0)", "b = f32[5,16,9] parameter(1)")
    dims = "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
    assert cost(*two, f"ROOT c = f32[5,7,9] dot(a, b), {dims}") == 2 * 5 * 7 * 9 * 16
    gemm = (
        'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
        '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"]}}}'
    )
    assert cost(*two, f"ROOT c = (f32[5,7,9], s8[4]) custom-call(a, b), {gemm}") == 2 * 5 * 7 * 9 * 16
    conv = ("x = f32[2,8,8,3] parameter(0)", "k = f32[3,3,3,4] parameter(1)")
    window = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    inside = kernel_uses(8, 3, 8, low=1)
    assert inside == 22
    assert cost(*conv, f"ROOT c = f32[2,8,8,4] convolution(x, k), {window}") == 2 * inside**2 * 2 * 4 * 3
    strided = "window={size=3x3 stride=2x2 pad=0_1x0_1}, dim_labels=b01f_01io->b01f"
    assert cost(*conv, f"ROOT c = f32[2,4,4,4] convolution(x, k), {strided}") == 2 * (4 * 3 - 1) ** 2 * 2 * 4 * 3
    library = 'custom_call_target="__cudnn$convForward"'
    called = cost(*conv, f"ROOT c = (f32[2,8,8,4], u8[0]) custom-call(x, k), {window}, {library}")
    assert called == 2 * 8 * 8 * 2 * 4 * 27


def test_costs_of_other_instructions():
    x = "x = f32[6,7] parameter(0)"
    assert cost(x, "ROOT y = f32[7,6] transpose(x), dimensions={1,0}") == 42
    assert (
        cost(x, "z = f32[] constant(0)", "ROOT y = f32[6] reduce(x, z), to_apply=add, dimensions={1}", before=ADD) == 42
    )
    assert cost("x = c64[6,8] parameter(0)", "ROOT y = c64[6,8] fft(x), fft_type=FFT, fft_length={8}") == 5 * 48 * 3
    fused = "fc {\n  p = f32[6,7] parameter(0)\n  q = f32[7,6] transpose(p)\n  r = f32[7,6] cosine(q)\n  ROOT s = f32[7,6] add(q, r)\n}"  # noqa: E501
    assert cost(x, "ROOT y = f32[7,6] fusion(x), kind=kLoop, calls=fc", before=fused) == 84


def test_convolution_pairs_are_counted_exactly():
    random = Random(3)
    for _ in range(300):
        data, kernel, out, stride, wide, apart = (random.randint(1, 6) for _ in range(6))
        low = random.randint(-3, 5)
        met = [o * stride + k * apart - low for o in range(out) for k in range(kernel)]
        expected = sum(0 <= place <= (data - 1) * wide and place % wide == 0 for place in met)
        options = {"stride": stride, "low": low, "data_dilation": wide, "kernel_dilation": apart}
        assert kernel_uses(data, kernel, out, **options) == expected


# -- untrusted texts ---------------------------------------------------------------------------------------------


INVALID = [
    module("x = f32[4] parameter(0)", "x = f32[4] parameter(1)"),
    module("ROOT y = f32[4] negate(x)"),
    module("ROOT y = f32[4] negate(%y)"),
    module("ROOT y = f32[4] negate("),
    module("ROOT y = f32[4] iota(), a={1"),
    module("ROOT y = f32[4] iota(), a=\"1"),
    module("ROOT y = f32[4] iota() nonsense"),
    module("ROOT y = f32[4]"),
    module("ROOT y = f32[99999999999999999999] iota()"),
    module("ROOT y = f32[9999999999,9999999999] iota()"),
    module("ROOT y = q4[3] iota()"),
    module("what is this"),
    module("y = f32[4] iota()"),
    module("ROOT y = f32[4] iota()", "ROOT z = f32[4] iota()"),
    module("ROOT y = f32[4] fusion(), calls=f"),
    module("y = f32[4] iota()", "ROOT z = f32[4] get-tuple-element(y), index=0"),
    module("y = (f32[4]) custom-call()", "ROOT z = f32[4] get-tuple-element(y), index=7"),
    module("y = f32[4] iota()", "ROOT z = (f32[4], f32[4]) tuple(y)"),
    module("y = f32[4] iota()", "ROOT z = (f32[4]) bitcast(y)"),
    module("y = f32[4] iota()", "ROOT z = f32[4] dot(y, y), lhs_contracting_dims={3}"),
    module("y = f32[4] iota()", "ROOT z = f32[4] dot(), lhs_contracting_dims={3}"),
    module("y = f32[4] iota()", "ROOT z = f32[4] copy-done(y)", "ROOT q = token[] iota()"),
    module("y = (f32[4], f32[4]) custom-call()", "ROOT z = (f32[], f32[]) copy-done(y)"),
    module("y = f32[4] iota()", "ROOT z = f32[4] convolution(y, y)"),
    module("ROOT y = f32[4] iota(), " + "control-predecessors={a}, " * 3 + "a"),
    "HloModule m\n",
    "HloModule m\nENTRY a {\n",
    "HloModule m\nnonsense\n",
    module("ROOT y = f32[] iota()") * 2,
    module("ROOT y = f32[] iota()", before=ADD * 2),
    module("ROOT y = f32[] iota()", before="b {\n  ROOT z = f32[] call(), to_apply=b\n}"),
    module("ROOT y = f32[] parameter(0)"),
]  # fmt: skip


@pytest.mark.parametrize("text", INVALID, ids=range(len(INVALID)))
def test_invalid_texts_are_refused(text):
    with refused("graph-file.hlo"):
        program_from_text(text)


def test_modules_without_a_schedule(tmp_path):
    path = tmp_path / "m.hlo"
    path.write_text(REMAT.replace(", is_scheduled=true", ""))
    with pytest.warns(UserWarning, match="the module is not scheduled"):
        graph = read_graph(path)
    with refused("graph-file.hlo", culprit="is_scheduled"):
        read_schedule(path, graph)
    path.write_text(REMAT.replace("neg", "pos"))
    with refused("graph-file.hlo", culprit="pos"):
        read_schedule(path, graph)
    path.write_text(module("ROOT y = f32[] parameter(0)"))
    with refused("graph-file.hlo", culprit="m.hlo"):
        read_schedule(path)
    assert FORMAT.recognizes(Source("x", b"\n HloModule x"))
    assert not FORMAT.recognizes(Source("x", b"module @x"))


@pytest.mark.parametrize(
    "text",
    [
        module(*(f"y{n} = f32[4] iota()" for n in range(4_000)), "ROOT z = f32[] iota()"),
        module("ROOT y = f32[4] iota(), a=\"" + '\\"' * 100_000),
        module("ROOT y = f32[4] iota(" + "{(" * 100_000),
        module("ROOT y = f32[4] iota(), a=" + "{" * 200_000 + "}" * 200_000),
        module("ROOT y = " + "(" * 200_000),
        module("ROOT y = (" + "f32[1], " * 20_000 + "f32[1]) custom-call()"),
        module("x = f32[1] iota()", "ROOT y = f32[1] call(" + "x, " * 50_000 + "x), a=1"),
        module("t0 = () tuple()", *(f"t{n} = (()) tuple(t{n - 1})" for n in range(1, 2000)), "ROOT z = f32[] iota()"),
        module("ROOT y = f32[4] /*" + "/*" * 100_000),
        module("ROOT y = f32[1000]{0} constant({" + " /*x*/ 1,\n" * 50_000 + "})"),
        "HloModule m\n" + "ENTRY { " * 100_000,
        "HloModule m\n" + "".join(
            f"c{n} {{\n  ROOT r = f32[] call(){f', to_apply=c{n - 1}' if n else ''}\n}}\n" for n in range(2000)
        ),
        "HloModule " + "m, " * 200_000,
        module("ROOT y = f32[3]{0:T(" + "1" * 100_000 + "} iota()"),
        module("ROOT y = f32[3]{0:T(" + "1" * 100_000 + ")} iota()"),
        module("y = f32[3] iota()", "ROOT z = f32[3] convolution(y, y), window={" + "a" * 100_000 + "}, dim_labels="
               + "b" * 100_000),
        module("ROOT y = f32[4] negate(" + "a" * 100_000 + "!)"),
        module("ROOT y = f32[] iota(), metadata={op_name=\"" + "a(" * 50_000 + "\"}"),
        module("ROOT y.remat" + "1" * 100_000 + "x = f32[] iota()"),
    ],
    ids=range(19),
)  # fmt: skip
def test_long_and_deep_texts_take_linear_time(text):
    """Each takes well below a second; quadratic time would be several times the limit."""
    with at_most(20):
        try:
            program_from_text(text)
        except (FormatError, GraphError) as error:
            assert len(str(error)) < 400


# -- texts of XLA --------------------------------------------------------------------------------------------------

# The files in `xla`: a step of three layers of tanh(x @ w), 1024 x 256, by jax 0.10.2 for an A100 limited to 4.5 MB,
# before and after XLA's own rematerialisation: XLA_FLAGS="--xla_dump_to=... --xla_dump_hlo_pass_re=.*remat.*
# --xla_gpu_autotune_level=0 --xla_dump_disable_metadata=true", jax.experimental.topologies.get_topology_desc("cuda").


def test_modules_rematerialised_by_xla():
    """Names and clones of fusions and views are those of XLA; the peaks equal those in its log."""
    before, after = (read_graph(XLA / f"{which}_rematerialization.txt") for which in ("before", "after"))
    assert before.digest == after.digest
    first, second = (read_schedule(XLA / f"{which}_rematerialization.txt", before) for which in ("before", "after"))
    assert validate(before, first).recomputations == 0
    found = validate(before, second)
    assert found.accepted
    again = Counter(second.computes())
    assert {op: count for op, count in again.items() if count > 1} == {
        "gemm_fusion_dot_general.8": 3, "gemm_fusion_dot_general.10": 2,
    }  # fmt: skip
    assert (found.recomputations, before.reference_peak, found.peak) == (3, 4_456_452, 3_670_020)
    # XLA's log: "reduced to 3.75MiB (3932196 bytes), down from 4.75MiB (4980772 bytes) originally". It reserves the
    # four results, and their tuple of pointers, from the beginning.
    for schedule, logged in ((first, 4_980_772), (second, 3_932_196)):
        missing, held = set(before.outputs), []
        for op, memory in zip(schedule.computes(), simulate(before, schedule).memory.tolist(), strict=True):
            missing -= set(before.ops[before.op_index[op]].outputs)
            held.append(memory + sum(before.tensors[before.tensor_index[t]].size for t in missing))
        assert max(held) + 8 * len(before.outputs) == logged


@pytest.mark.parametrize("checkpoint", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "checkpoint"])
def test_program_compiled_by_xla(checkpoint):
    """Totals of a training step equal those of XLA, which compiles it for this machine.

    XLA for CPUs has no rematerialisation, and merges recomputations of ``jax.checkpoint`` with the first compute.
    """
    jax = pytest.importorskip("jax")
    from jax import numpy as jnp

    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w) @ w.T)

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((32, 16), (8, 32))]
    step = jax.value_and_grad(jax.checkpoint(loss) if checkpoint else loss)
    compiled = jax.jit(step).lower(*shapes).compile()
    program = program_from_text(compiled.as_text())
    assert program.is_scheduled
    assert program.graph.meta["constant_bytes"]["parameter"] == 4 * (32 * 16 + 8 * 32)
    assert sum(program.graph.tensors[program.graph.tensor_index[t]].size for t in program.graph.outputs) == 4 + 2048
    assert validate(program.graph, schedule_of_program(program)).accepted
    total = compiled.cost_analysis()
    assert program.graph.base_cost == pytest.approx(total["flops"] + total.get("transcendentals", 0), rel=0.1)
    assert ("rematted_computation" in compiled.as_text()) == checkpoint
    assert validate(program.graph, schedule_of_program(program)).recomputations == 0


def test_elementwise_instructions_write_in_place_on_request() -> None:
    text = """HloModule tiny, is_scheduled=true
    ENTRY main {
      p = f32[4] parameter(0)
      x = f32[4] negate(p)
      y = f32[4] exponential(x)
      c = pred[4] compare(x, y), direction=LT
      z = f32[4] select(c, x, y)
      ROOT r = f32[8] concatenate(z, x), dimensions={0}
    }"""
    assert not program_from_text(text).graph.in_place
    found = {op.name: op.in_place for op in program_from_text(text, in_place=True).graph.ops}
    assert found == {"x": (), "y": (("y", "x"),), "c": (), "z": (("z", "x"), ("z", "y")), "r": ()}
