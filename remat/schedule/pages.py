"""Interactive page of a schedule: memory of device and host, links, and Gantt chart on one axis, in one HTML file.

A schedule that breaks rules is shown as far as possible, with its violations marked.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from remat.graphs import ComputeGraph
from remat.io.files import write_atomic
from remat.io.page import page_text
from remat.runtime.arrays import Int
from remat.runtime.sizes import size_text
from remat.runtime.text import printable
from remat.schedule.certificate import Certificate, Verdict, overhead_text
from remat.schedule.drawing import time_unit
from remat.schedule.machine import Machine
from remat.schedule.rules import Rules
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import Simulation, kept_tensors, simulate
from remat.schedule.step_lines import StepLines, described
from remat.schedule.timing import time_schedule
from remat.schedule.traces.layers import NO_MODULE, layer_labels
from remat.schedule.traces.timeline import module_paths
from remat.schedule.validate import validate


def schedule_page(
    graph: ComputeGraph, schedule: Schedule, rules: Rules | None = None, lines: StepLines | None = None
) -> str:
    """Return the page of `schedule` as HTML; same schedule, same text.

    Parameters
    ----------
    rules : Rules, optional
        Budget to draw, and rules to check as :func:`remat.schedule.validate.validate` does. With a machine, a valid
        schedule has an axis of time, the work of the links, and the waits of the device.
    lines : StepLines, optional
        Lines of the steps in the file of the schedule, for its violations.

    Raises
    ------
    ProblemError, ScheduleError
        As :func:`remat.schedule.validate.validate`.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> chain = unit_chain(2)
    >>> page = schedule_page(chain, Schedule.reference(chain))
    >>> page.startswith("<!DOCTYPE html>"), "http:" in page or "https:" in page
    (True, False)
    """
    return page_text(page_data(graph, schedule, rules, lines))


def save_page(
    graph: ComputeGraph, schedule: Schedule, path: str | os.PathLike[str], rules: Rules | None = None
) -> None:
    """Write :func:`schedule_page` to a file atomically.

    Raises
    ------
    FormatError
        Naming the file, if it cannot be written.
    """
    write_atomic(path, schedule_page(graph, schedule, rules))


def page_data(
    graph: ComputeGraph, schedule: Schedule, rules: Rules | None = None, lines: StepLines | None = None
) -> dict[str, Any]:
    """Return the data of the page as JSON values; steps are compute steps, from 0.

    Names occur once, in tables; elsewhere they are positions. A tensor with the name of an op is the op's position.
    """
    rules = rules or Rules()
    certificate = validate(graph, schedule, rules)
    counting = {"keep": rules.keep, "count_constant_memory": rules.count_constant_memory}
    run = simulate(graph, schedule, **counting)  # type: ignore[arg-type]
    before = np.concatenate([[0], np.cumsum(run.is_compute)])
    found = run.intervals
    arrays = graph.arrays
    base = simulate(graph, Schedule.reference(graph), **counting)  # type: ignore[arg-type]
    reference = np.zeros(len(graph.ops), dtype=np.int64)
    reference[base.ops[base.is_compute]] = base.memory[base.is_compute]
    types = {kind: number for number, kind in enumerate(dict.fromkeys(op.type for op in graph.ops))}
    steps, unknown = _steps(run, schedule)
    backward = [k for k, op in enumerate(steps) if op < len(graph.ops) and graph.ops[op].phase == "backward"]
    return {
        "kind": "schedule",
        "title": printable(graph.name) or "schedule",
        "lines": _lines(graph, certificate, before, lines),
        "ops": [*graph.op_names, *unknown],
        "types": [printable(kind) for kind in types],
        "type": [types[op.type] for op in graph.ops],
        "costs": arrays.cost.tolist(),
        "costUnit": "cost" if graph.cost_unit == "none" else graph.cost_unit,
        **_modules(graph),
        "tensors": [graph.op_index.get(name, name) for name in graph.tensor_names],
        "sizes": arrays.size.tolist(),
        "reads": arrays.op_inputs.lists(),
        "inputs": np.flatnonzero(arrays.is_input).tolist(),
        "kept": np.flatnonzero(kept_tensors(graph, rules.keep)).tolist(),
        "steps": steps,
        "memory": run.memory[run.is_compute].tolist(),
        "intervals": {
            "tensor": found.tensor.tolist(), "start": before[found.start].tolist(), "end": before[found.end].tolist(),
            "fetched": np.flatnonzero(run.fetched).tolist(),
        },
        "reference": reference.tolist() if run.recomputations else None,
        "budget": rules.budget,
        "peak": run.peak,
        "peakStep": None if run.peak_step is None else int(before[run.peak_step]),
        "host": _host(run, before, rules.machine),
        "clock": None if rules.machine is None or run.violations or certificate.time is None
        else _clock(run, rules.machine),
        "backward": backward[0] if backward else None,
        "faults": [
            [None if each.step is None else int(before[each.step]), described(each, lines), str(each.rule)]
            for each in certificate.violations
        ],
    }  # fmt: skip


def _host(run: Simulation, before: Int, machine: Machine | None) -> dict[str, Any] | None:
    """Return the largest memory of the host up to each compute since the one before: steps of changes, and bytes."""
    computes = int(before[-1])
    if run.host is None or not computes:
        return None
    held = np.zeros(computes, dtype=np.int64)
    np.maximum.at(held, np.minimum(before[:-1], computes - 1), run.host.memory)
    changes = np.flatnonzero(np.diff(held, prepend=0))
    return {
        "step": changes.tolist(), "bytes": held[changes].tolist(), "peak": run.host.peak,
        "limit": None if machine is None else machine.host,
    }  # fmt: skip


def _clock(run: Simulation, machine: Machine) -> dict[str, Any]:
    """Return times in the cost unit: waits before computes and at the end, and transfers in the order of the steps."""
    timing = time_schedule(run, machine)
    starts, ends = timing.start[run.is_compute], timing.end[run.is_compute]
    waits = np.append(starts, timing.time) - np.append(0, ends)
    waiting = np.flatnonzero(waits)
    moves = np.flatnonzero((run.kinds == StepKind.OFFLOAD) | (run.kinds == StepKind.FETCH))
    scale, label = time_unit(run.graph.cost_unit, float(timing.time))
    return {
        "scale": scale,
        "unit": label.removeprefix("time (").removesuffix(")"),
        "waits": {"step": waiting.tolist(), "length": waits[waiting].tolist()},
        "transfers": {
            "tensor": run.moved[moves].tolist(),
            "back": np.flatnonzero(run.kinds[moves] == StepKind.FETCH).tolist(),
            "start": timing.start[moves].tolist(),
            "length": (timing.end - timing.start)[moves].tolist(),
        },
    }


def _steps(run: Simulation, schedule: Schedule) -> tuple[list[int], list[str]]:
    """Return the op of each compute step, and names of ops that the graph lacks, which follow its own."""
    unknown: dict[str, int] = {}
    steps = run.ops[run.is_compute].tolist()
    targets = schedule.targets[run.is_compute].tolist()
    for k, (op, target) in enumerate(zip(steps, targets, strict=True)):
        if op < 0:
            name = printable(schedule.op_names[target])
            steps[k] = len(run.graph.ops) + unknown.setdefault(name, len(unknown))
    return steps, list(unknown)


def _modules(graph: ComputeGraph) -> dict[str, Any]:
    """Return paths of modules, that of each op (-1: none), and the layers that the paths belong to."""
    paths = module_paths(graph)
    if not paths:
        return {"modules": [], "module": [], "layers": [], "layerOf": []}
    layer_of = {paths[op]: layer for op, layer in zip(graph.op_names, layer_labels(graph), strict=True) if op in paths}
    modules = {path: number for number, path in enumerate(layer_of)}
    layers = {name: number for number, name in enumerate(dict.fromkeys(layer_of.values())) if name != NO_MODULE}
    return {
        "modules": [printable(path) for path in modules],
        "module": [modules[paths[op]] if op in paths else -1 for op in graph.op_names],
        "layers": [printable(name) for name in layers],
        "layerOf": [layers.get(name, -1) for name in layer_of.values()],
    }


def _lines(
    graph: ComputeGraph, certificate: Certificate, before: Any, lines: StepLines | None
) -> list[tuple[str, str]]:
    """Return the lines below the title: style and text."""
    overhead = f", overhead {overhead_text(certificate.cost, graph.base_cost)}" if graph.base_cost else ""
    where = "" if certificate.peak_op is None else f" in op {certificate.peak_op}"
    facts = f"peak {size_text(certificate.peak)}{where}, {certificate.computes:,} computes, "
    facts += f"{certificate.recomputations:,} of them recomputations{overhead}{_time_facts(certificate)}"
    if certificate.verdict is Verdict.VALID:
        limit = "" if certificate.budget is None else f" within {size_text(certificate.budget)}"
        return [("", f"valid{limit}: {facts}")]
    first = certificate.decisive
    assert first is not None
    shown = first.step if first.step is None else int(before[first.step])
    place = f" (step {shown:,} of the picture)" if shown != first.step else ""
    others = len(certificate.violations) + certificate.more_violations - 1
    more = f"; {others:,} more violations" if others else ""
    return [("fault", f"{certificate.verdict}: {printable(described(first, lines))}{place}{more}"), ("", facts)]


def _time_facts(certificate: Certificate) -> str:
    """Return the host's peak and the time of a schedule with transfers or a machine, as the end of a sentence."""
    moved = certificate.transfers
    if moved is None:
        return ""
    host = f"; {size_text(moved.host_peak)} on the host"
    if moved.time is None or moved.stall is None or not moved.time:
        return host
    time = overhead_text(moved.time, certificate.base_cost)
    return f"{host}; {time} more time than each op once, {100 * moved.stall / moved.time:.3g} % of the time waiting"
