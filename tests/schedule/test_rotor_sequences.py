"""Sequences of Rotor as schedules of chains, against Rotor's rules for stored values."""

from random import Random

import pytest
from refusals import refused

from remat.graphs import GraphBuilder, read_graph
from remat.graphs.families import pyramid, unit_chain
from remat.graphs.zoo import ZOO
from remat.schedule import read_schedule, simulate, validate


def chain(random, blocks):
    """Return a chain of forward ops with an output to pass on and one to save, a loss, and backward ops."""
    b = GraphBuilder("chain")
    b.input("x0", 0)
    sizes = {"x0": 0}
    for i in range(blocks):
        sizes |= {f"x{i + 1}": random.randint(1, 9), f"saved{i}": random.randint(0, 9)}
        outputs = {name: sizes[name] for name in (f"x{i + 1}", f"saved{i}")}
        b.op(f"F{i}", inputs=[f"x{i}"], outputs=outputs, cost=1, phase="forward")
    sizes[f"y{blocks}"] = random.randint(1, 9)
    b.op("loss", inputs=[f"x{blocks}"], outputs={f"y{blocks}": sizes[f"y{blocks}"]}, phase="loss")
    for i in reversed(range(blocks)):
        sizes[f"y{i}"] = random.randint(1, 9)
        reads = [f"x{i}", f"x{i + 1}", f"saved{i}", f"y{i + 1}"]
        b.op(f"B{i}", inputs=reads, outputs={f"y{i}": sizes[f"y{i}"]}, cost=2, phase="backward")
    b.output("y0")
    return b.build(), sizes


def random_sequence(random, first, last, blocks):
    """Return a random result of Rotor's recursion for blocks `first` to `last`; block `blocks` is the loss."""
    if first == last:
        return ["L"] if first == blocks else [f"Fe_{first}", f"B_{first}"]
    split = random.randint(first, last)
    if split == first:
        return [f"Fe_{first}", *random_sequence(random, first + 1, last, blocks), f"B_{first}"]
    run = [f"CF_{first}", *(f"Fn_{i}" for i in range(first + 1, split))]
    later, earlier = (random_sequence(random, *ends, blocks) for ends in ((split, last), (first, split - 1)))
    return [*run, *later, *earlier]


def stored(sequence, sizes, blocks):
    """Yield the bytes at each operation by Rotor's rules: stored are x (passed on), xbar (all of it) and y."""
    held: dict[str, int] = {}
    for word in sequence:
        name, _, number = word.partition("_")
        i = int(number or blocks)
        if name == "L":
            held[f"y{i}"] = sizes[f"y{i}"]
            yield sum(held.values())
        elif name == "B":
            held[f"y{i}"] = sizes[f"y{i}"]
            yield sum(held.values())
            for gone in (f"x{i}", f"y{i + 1}", f"xbar{i + 1}"):
                held.pop(gone, None)
        else:
            here = held.pop(f"x{i + 1}", 0)  # computed over the existing value
            whole = sizes[f"x{i + 1}"] + sizes[f"saved{i}"]
            yield sum(held.values()) + whole
            if name == "Fe":
                held[f"xbar{i + 1}"] = whole
            elif f"xbar{i + 1}" not in held:
                held[f"x{i + 1}"] = here or sizes[f"x{i + 1}"]
            if name == "Fn":
                held.pop(f"x{i}", held.pop(f"xbar{i}", None))


def test_memory_equals_rotors_rules(tmp_path):
    path = tmp_path / "sequence.txt"
    for seed in range(100):
        random = Random(seed)
        blocks = random.randint(1, 7)
        graph, sizes = chain(random, blocks)
        sequence = random_sequence(random, 0, blocks, blocks)
        path.write_text(random.choice([f"[{', '.join(sequence)}]\n", "\n".join(sequence)]))
        schedule = read_schedule(path, graph)
        assert validate(graph, schedule).accepted, sequence
        done = simulate(graph, schedule)
        assert done.memory[done.is_compute].tolist() == list(stored(sequence, sizes, blocks)), sequence


SPELLINGS = (
    "CF_0 Fn_1 Fe_2 L B_2 CF_0 Fe_1 B_1 Fe_0 B_0",
    "Fc_0\nFn_1\nFe_2_0\nLoss\nBwd_2\nFc_0\nFe_1_0\nBwd_1\nFe_0_0\nBwd_0\n",
    "F_ck_0, F_null_1, F_all_2, Loss, B_2, F_ck_0, F_all_1, B_1, F_all_0, B_0",
    "[ForwardCheck(0), ForwardNograd(1), ForwardEnable(2), Loss(), Backward(2), ForwardCheck(0), ForwardEnable(1), "
    "Backward(1), ForwardEnable(0), Backward(0)]",
)


def test_spellings_and_graphs_without_phases(tmp_path):
    graph = unit_chain(3)
    path = tmp_path / "s"
    found = set()
    for text in SPELLINGS:
        path.write_text(text)
        found.add(read_schedule(path, graph))
    (schedule,) = found
    assert schedule.computes() == ["f0", "f1", "f2", "loss", "g2", "f0", "f1", "g1", "f0", "g0"]
    certificate = validate(graph, schedule)
    assert (certificate.accepted, certificate.peak) == (True, 4)
    vgg = ZOO["vgg16"]()  # chain of 22 layers, the loss, 22 gradients
    path.write_text(" ".join([*(f"Fe_{i}" for i in range(22)), "L", *(f"B_{i}" for i in reversed(range(22)))]))
    assert validate(vgg, read_schedule(path, vgg)).cost == vgg.base_cost


def test_invalid_sequences_are_refused(tmp_path):
    path = tmp_path / "s"
    two = unit_chain(2)
    for text, graph, kind, culprit in (
        ("CF_0 Fe_1 L B_1 Fe_0 Bx_0", two, "format.rotor-operation", "operation 5"),
        ("CF_0 Fe_1 L_3", two, "format.rotor-operation", "operation 2"),
        ("CF_0 Fe L", two, "format.rotor-operation", "operation 1"),
        ("CF_0 Fe_1_2 L", two, "format.rotor-operation", "option"),
        ("CF_0 Fe_7 L", two, "format.rotor-block", "7"),
        ("Fe_0 Off_0 Fe_1 L Pre_0", two, "format.offload", "operation 1"),
        ("Fe_0 L B_0", pyramid(2), "format.rotor-chain", "r1c0"),
        ("Fe_0 L B_0", None, "format.needs-graph", ""),
    ):
        path.write_text(text)
        with refused(kind, culprit=culprit):
            read_schedule(path, graph)
    skip = GraphBuilder("skip")
    for name, before in (("f0", []), ("f1", ["f0"]), ("loss", ["f1"]), ("g1", ["loss", "f1"]), ("g0", ["g1", "loss"])):
        skip.op(name, inputs=before, size=1)
    path.write_text("Fe_0 Fe_1 L B_1 B_0")
    with refused("format.rotor-chain", culprit="'g0'"):
        read_schedule(path, skip.build())


@pytest.mark.shared
def test_chain_of_checkmate(tmp_path, shared):
    graph = read_graph(shared / "data/graphs/checkmate_vgg16_profile.json")
    blocks = len(graph.ops) // 2
    path = tmp_path / "s"
    path.write_text("\n".join(random_sequence(Random(1), 0, blocks, blocks)))
    assert validate(graph, read_schedule(path, graph)).accepted
