"""Schedules of saved sets: the backward pass recomputes all tensors that the forward pass does not save."""

from refusals import refused

from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.schedule.saved_sets import schedule_of_saved
from remat.schedule.validate import validate


def step() -> ComputeGraph:
    """Return f (two outputs, the second read only in the backward pass), a random g, the loss, and two backward ops."""
    b = GraphBuilder("step")
    b.op("f", outputs={"f.0": 8, "f.1": 1}, cost=3, phase="forward")
    b.op("g", inputs=["f.0"], size=8, cost=2, phase="forward")
    b.op("loss", inputs=["g"], size=1, phase="loss", recomputable=False)
    b.op("dg", inputs=["loss", "g"], size=8, phase="backward")
    b.op("df", inputs=["dg", "f.0", "f.1"], size=8, phase="backward")
    return b.build()


def test_unsaved_tensors_are_recomputed_at_first_use() -> None:
    graph = step()
    nothing = schedule_of_saved(graph, [])
    assert nothing.computes() == ["f", "g", "loss", "f", "g", "dg", "df"]  # the loss runs once
    some = schedule_of_saved(graph, ["g"])
    assert some.computes() == ["f", "g", "loss", "dg", "f", "df"]
    everything = schedule_of_saved(graph, ["f.0", "f.1", "g"], source="me")
    assert everything.computes() == list(graph.op_names)
    assert everything.source == "me"
    for schedule in (nothing, some, everything):
        assert validate(graph, schedule).accepted


def test_chain_with_every_second_value_saved() -> None:
    graph = unit_chain(4)
    found = schedule_of_saved(graph, ["f1", "f3"])
    assert found.computes() == ["f0", "f1", "f2", "f3", "loss", "g3", "f2", "g2", "g1", "f0", "g0"]
    assert validate(graph, found).accepted


def test_errors_name_the_tensor() -> None:
    with refused("schedule.unknown-tensor", culprit="h"):
        schedule_of_saved(step(), ["h"])
    b = GraphBuilder("inference")
    b.op("f", size=1)
    with refused("schedule.no-backward", culprit="inference"):
        schedule_of_saved(b.build(), [])
