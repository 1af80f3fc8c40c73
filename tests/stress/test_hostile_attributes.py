"""Arbitrary shapes and attributes give a rewritten graph or an error of one line."""

import copy
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from remat.errors import RematError
from remat.graphs.rewriting import RewriteOptions, rewrite_graph
from remat.graphs.rewriting.check import check_numerics
from remat.runtime.deadline import Deadline

SECONDS = 30
JUNK = [
    None, True, -1, 0, 1, 2, 3, 2**70, 1.5, float("nan"), "", "NHWC", "x0", [], [1], [1, 2], [-1], [[1]], {},
    {"parts": [1]}, {"axis": 0, "parts": ["x0"]}, ["x0", 0, 1], "SAME", [0, 0, 1, 1],
    {"of": "y", "operand": 0, "axis": 3, "start": 0, "stop": 1, "extent": 2},
]  # fmt: skip
KEYS = [
    "axis", "concat_axis", "concat_inputs", "operands", "layout", "channel_axis", "groups", "kernel", "stride",
    "dilation", "padding", "weight_shape", "part_of", "finish_of", "output_slice", "reads_parts", "start", "axes",
    "training", "activation", "pre_activation", "data_format", "transpose_a",
    "kind", "constants", "function", "parameters", "pads", "join_of",
]  # fmt: skip
TYPES = [
    "Conv", "MatMul", "Dense", "ReduceSum", "ReduceMean", "Slice", "Split", "Finish", "PartialConv", "Concat",
    "LayerNorm", "GroupNorm", "ConvTranspose", "GlobalMaxPool", "SepConv", "Activation",
]  # fmt: skip


@pytest.mark.slow
def test_random_values_in_shapes_and_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent.parent / "graphs" / "rewriting")])
    from small_networks import described_network, random_network

    from remat.graphs.rewriting.pieces import pieces

    rng = random.Random(3)
    end = time.monotonic() + SECONDS
    computed = refused = 0
    while time.monotonic() < end:
        described = rng.random() < 0.4
        graph = described_network() if described else random_network(rng.randrange(10**6), rng.randint(2, 8))
        if rng.random() < 0.3:
            graph = rewrite_graph(graph, RewriteOptions(min_parts=2)).graph
        meta = copy.deepcopy(dict(graph.meta))
        for _ in range(rng.randint(1, 3)):
            where, junk = rng.random(), copy.deepcopy(rng.choice(JUNK))
            if where < 0.15 and isinstance(meta["shapes"], dict):
                meta["shapes"][rng.choice(graph.tensor_names)] = junk
            elif where < 0.2:
                meta[rng.choice(["shapes", "attrs", "layout", "rewriting"])] = junk
            elif isinstance(meta["attrs"], dict):
                attributes = meta["attrs"].setdefault(rng.choice(graph.op_names), {})
                if isinstance(attributes, dict):
                    entries = attributes.get("constants")
                    entry = rng.choice(entries) if isinstance(entries, list) and entries else None
                    if isinstance(entry, dict) and rng.random() < 0.5:
                        entry[rng.choice(["input", "shape", "role", "along", "out", "in"])] = junk
                    else:
                        attributes[rng.choice(KEYS)] = junk
        ops = [op if rng.random() < 0.9 else replace(op, type=rng.choice(TYPES)) for op in graph.ops]
        wrong = replace(graph, ops=ops, meta=meta)
        options = RewriteOptions(min_parts=2, accumulator_bytes=rng.choice([None, 4]), parts=rng.choice([None, 2]))
        try:
            done = rewrite_graph(wrong, options)
            pieces(done.graph)
            check_numerics(wrong, done.graph, deadline=Deadline.after(20))
            computed += 1
        except RematError as error:
            assert "\n" not in str(error)
            assert described or "does not compute the same" not in str(error)
            refused += 1
    assert min(computed, refused) > 50
