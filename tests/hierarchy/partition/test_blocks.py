"""Chains of blocks from modules, names and articulation points."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from remat.errors import ProblemError
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.io import load_graph
from remat.graphs.zoo.transformers import gpt
from remat.hierarchy import Group
from remat.hierarchy.partition.base import groupable
from remat.hierarchy.partition.blocks import Blocks, BlocksOptions, block_chain
from remat.problem import Problem


def side_tensors(problem: Problem, chain: list[Group]) -> set[str]:
    """Return tensors that skip a block; assert that blocks hold all forward ops and read only earlier blocks."""
    arrays = problem.graph.arrays
    forward = np.concatenate([block.forward for block in chain])
    assert sorted(forward) == sorted(groupable(problem))
    number = np.full(len(arrays.cost), -1)
    for k, block in enumerate(chain):
        number[block.forward] = k
    inside = (number[arrays.edge_producer] >= 0) & (number[arrays.edge_consumer] >= 0)
    steps = (number[arrays.edge_consumer] - number[arrays.edge_producer])[inside]
    assert (steps >= 0).all()
    return {problem.graph.tensor_names[t] for t in arrays.edge_tensor[inside][steps > 1]}


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("accumulation", ["sums", "buffers"])
def test_modules_give_the_layers_of_a_transformer(accumulation, order) -> None:
    problem = Problem(gpt(layers=4, accumulation=accumulation), order=order)
    root = Blocks().partition(problem).root
    chain = block_chain(problem)
    assert not side_tensors(problem, chain)
    assert [block.name for block in chain] == ["embedding", *(f"layers.{k}" for k in range(4)), "head"]
    assert [block.name for block in root.children] == [block.name for block in block_chain(problem, "modules")]
    assert {(len(block.forward), len(block.backward)) for block in root.children[1:-1]} == {(15, 15)}
    assert [problem.graph.op_names[op] for op in root.alone] == ["loss", "grad_loss"]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "source", "blocks"),
    [
        ("checkmate_vgg16_static", "names", 6),
        ("checkmate_resnet50_static", "names", 19),
        ("checkmate_unet_static", "articulation", 10),
        ("gpt2l__rotor64k", "articulation", 8),
        ("resnet_gn__rotor64k", "articulation", 21),
        ("resnet50_train", "articulation", 40),
        ("unet_train", "articulation", 16),
        ("bert_base_infer", "articulation", 54),
    ],
)
def test_chains_of_real_graphs(name: str, source: str, blocks: int, shared) -> None:
    problem = Problem(load_graph(shared / "data" / "graphs" / f"{name}.json"))
    chain = block_chain(problem)
    side = side_tensors(problem, chain)
    assert [block.name for block in chain] == [block.name for block in block_chain(problem, source)]
    assert len(chain) == blocks
    graph, arrays = problem.graph, problem.graph.arrays
    assert arrays.size[[graph.tensor_index[t] for t in side]].sum() <= 0.1 * arrays.size.sum()
    # only the loss and late sums of gradients remain, as the order is fixed
    root = Blocks(BlocksOptions(most=blocks)).partition(problem).root
    assert len(root.alone) <= 2
    for block in root.children:
        for ops in (block.forward, block.backward):
            assert (np.diff(arrays.position[ops]) == 1).all()
    if "unet" in name:  # skips join the ops between their ends
        assert max(len(block.forward) for block in chain) > 0.7 * len(groupable(problem))


def encoder_decoder(layers: int, mask: int) -> Problem:
    b = GraphBuilder("encoder-decoder")
    b.op("mask", size=mask)
    b.op("x", size=100)
    last = "x"
    for side in ("encoder", "decoder"):
        memory = last
        for k in range(layers):
            more = [memory] if side == "decoder" and memory != last else []
            name = f"{side}.{k}"
            b.op(f"{name}.attn", inputs=[last, "mask", *more], size=100, cost=5)
            b.op(f"{name}.up", inputs=[f"{name}.attn"], size=400, cost=5)
            last = b.op(f"{name}.down", inputs=[f"{name}.attn", f"{name}.up"], size=100, cost=5)
    return Problem(b.build())


def test_small_long_lived_values_are_side_tensors() -> None:
    problem = encoder_decoder(4, mask=10)
    chain = block_chain(problem)
    assert side_tensors(problem, chain) == {"mask", "encoder.3.down"}
    assert [block.name for block in chain] == ["mask", *(f"{s}.{k}" for s in ("encoder", "decoder") for k in range(4))]
    again = block_chain(problem, "articulation")
    assert side_tensors(problem, again) == {"mask", "encoder.3.down"}
    assert len(again) == 16  # after attention, too


def test_large_long_lived_values_join_blocks() -> None:
    for mask, max_side in ((10_000, 10), (10, 0)):
        problem = encoder_decoder(4, mask=mask)
        chain = block_chain(problem, "names", max_side=max_side)
        side_tensors(problem, chain)
        assert [block.name for block in chain] == ["mask", "encoder.0 .. decoder.3"]  # all readers


def test_numbered_modules_within_numbered_modules() -> None:
    """Stages are split into their blocks; numbered layers of a block are no blocks."""
    b = GraphBuilder("stages")
    last, modules = None, {}
    for stage, blocks in enumerate((1, 6)):
        for block in range(blocks):
            for part in ("attn", "mlp.0", "mlp.1"):
                path = f"stages.{stage}.blocks.{block}.{part}"
                last = b.op(path, inputs=[last] if last else [], size=1)
                modules[path] = path
    b.meta["modules"] = modules
    chain = block_chain(Problem(b.build()))
    assert [block.name for block in chain] == [
        "stages.0.blocks.0",
        *(f"stages.1.blocks.{k}" for k in range(6)),
    ]


def test_graphs_without_chain_or_paths_are_refused() -> None:
    b = GraphBuilder("one")
    b.op("a", size=1)
    with refused("problem.chain"):
        block_chain(Problem(b.build()))
    with refused("problem.no-paths", culprit="modules"):
        block_chain(Problem(unit_chain(4)), "modules")
    with refused("problem.unknown-source"):
        block_chain(Problem(unit_chain(4)), "layers")  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_random_names_give_chains_or_errors(seed: int) -> None:
    draw = random.Random(seed)
    b = GraphBuilder("random")
    names: list[str] = []
    for k in range(draw.randint(2, 14)):
        inputs = draw.sample(names, min(len(names), draw.randint(0, 3)))
        names.append(b.op(f"{draw.choice(['b.0', 'b.1', 'b.2', 'x'])}.op{k}x", inputs=inputs, size=draw.randint(0, 9)))
    graph = b.build()
    for source, order in (("names", "free"), ("names", "fixed"), ("articulation", "fixed")):
        try:
            chain = block_chain(Problem(graph, order=order), source, max_side=draw.choice([0, 20, 100]))
        except ProblemError:
            continue
        side_tensors(Problem(graph, order=order), chain)
        if order == "fixed":
            assert all((np.diff(graph.arrays.position[block.forward]) == 1).all() for block in chain)
