"""Schedules of saved sets: what the forward pass keeps, the rest once again in the backward pass."""

from refusals import refused

from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.schedule.saved_sets import schedule_of_saved
from remat.schedule.validate import validate


def step() -> ComputeGraph:
    """f (two outputs; the second read in the backward pass only), a random g, the loss, and two backward ops."""
    b = GraphBuilder("step")
    b.op("f", outputs={"f.0": 8, "f.1": 1}, cost=3, phase="forward")
    b.op("g", inputs=["f.0"], size=8, cost=2, phase="forward")
    b.op("loss", inputs=["g"], size=1, phase="loss", recomputable=False)
    b.op("dg", inputs=["loss", "g"], size=8, phase="backward")
    b.op("df", inputs=["dg", "f.0", "f.1"], size=8, phase="backward")
    return b.build()


def test_what_is_not_saved_is_computed_again_at_its_first_need() -> None:
    graph = step()
    nothing = schedule_of_saved(graph, [])
    assert nothing.computes() == ["f", "g", "loss", "f", "g", "dg", "df"]  # the loss runs once, and is kept
    some = schedule_of_saved(graph, ["g"])
    assert some.computes() == ["f", "g", "loss", "dg", "f", "df"]
    everything = schedule_of_saved(graph, ["f.0", "f.1", "g"], source="me")
    assert everything.computes() == list(graph.op_names)
    assert everything.source == "me"
    for schedule in (nothing, some, everything):
        assert validate(graph, schedule).accepted


def test_a_chain_saves_every_second_value() -> None:
    graph = unit_chain(4)
    found = schedule_of_saved(graph, ["f1", "f3"])
    assert found.computes() == ["f0", "f1", "f2", "f3", "loss", "g3", "f2", "g2", "g1", "f0", "g0"]
    assert validate(graph, found).accepted


def test_faults_name_the_tensor() -> None:
    with refused("schedule.unknown-tensor", culprit="h"):
        schedule_of_saved(step(), ["h"])
    b = GraphBuilder("inference")
    b.op("f", size=1)
    with refused("schedule.no-backward", culprit="inference"):
        schedule_of_saved(b.build(), [])
