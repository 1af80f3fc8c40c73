"""Selective checkpointing: the formulation agrees with all choices of small training steps, tried one by one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from refusals import refused

from remat import Problem, solve
from remat.backends.highs import Highs
from remat.formulations.policies import Policies, PoliciesOptions
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.heuristics.policies import PolicySearch
from remat.modeling import violations
from remat.problem.regions import Replays, Saved, contiguous_groups, regions_of
from remat.runtime.solve_options import SolveOptions
from remat.schedule import OrderRule, Schedule


def step(seed: int) -> ComputeGraph:
    """Return a small training step: a forward graph with skips, and backward ops that read values and gradients."""
    rng = random.Random(seed)
    b = GraphBuilder(f"step {seed}")
    count = rng.randint(3, 6)
    names: list[list[str]] = []
    values: list[str] = []
    for k in range(count):
        reads = ([names[-1][0]] if names else []) + [v for v in values[:-1] if rng.random() < 0.25]
        outputs = [b.tensor(f"t{k}.{i}", rng.randint(0, 9)) for i in range(rng.choice([1, 1, 1, 2]))]
        b.op(f"f{k}", inputs=list(dict.fromkeys(reads)), outputs=outputs, cost=rng.randint(0, 6), phase="forward",
             workspace=rng.choice([0, 0, 3]), recomputable=rng.random() < 0.9)  # fmt: skip
        names.append([f"t{k}.{i}" for i in range(len(outputs))])
        values += names[-1]
    previous = names[-1][0]
    for k in reversed(range(count)):
        reads = [previous, *(v for v in (*names[k], *names[max(k - 1, 0)]) if rng.random() < 0.6)]
        b.op(f"g{k}", inputs=list(dict.fromkeys(reads)), outputs=[b.tensor(f"d{k}", rng.randint(1, 6))],
             cost=rng.randint(0, 6), phase="backward")  # fmt: skip
        previous = f"d{k}"
    for value in (*values, previous):
        if rng.random() < 0.1 or value == previous:
            b.output(value)
    return b.build()


def stated(seed: int) -> tuple[Problem, PoliciesOptions]:
    """Return a problem with regions."""
    rng = random.Random(seed * 7 + 1)
    problem = Problem(step(seed))
    forward = sum(op.phase == "forward" for op in problem.graph.ops)
    cuts = sorted({0, *rng.sample(range(forward), rng.randint(0, min(2, forward - 1)))})
    groups = contiguous_groups(problem, cuts)
    groups = {name: ops for name, ops in groups.items() if rng.random() < 0.85} or groups
    regions = list(regions_of(problem, groups))
    if regions and rng.random() < 0.3:
        once = {op.name for op in problem.graph.ops if not op.recomputable}
        may = [op for op in regions[0].replayed if op not in once]
        regions[0] = replace(regions[0], unsavable=frozenset(rng.sample(may, min(len(may), 1))))
    return problem, PoliciesOptions(tuple(regions), plain=rng.random() < 0.6)


def choices(problem: Problem, options: PoliciesOptions) -> Iterator[Saved]:
    """Yield all choices."""
    once = {op.name for op in problem.graph.ops if not op.recomputable}
    of_region: list[list[tuple[frozenset[str], frozenset[str]]]] = []
    for region in options.regions:
        free = [op for op in region.replayed if op not in once and op not in region.unsavable]
        always = [op for op in region.replayed if op in once]
        mine = [
            (frozenset((*always, *some)), frozenset[str]())
            for size in range(len(free) + 1)
            for some in itertools.combinations(free, size)
        ]
        if any(op in region.unsavable for op in always):
            mine = []
        of_region.append(mine + [(frozenset(), frozenset({region.name}))] * options.plain)
    for each in itertools.product(*of_region):
        yield Saved(frozenset().union(*(ops for ops, _ in each)), frozenset().union(*(bare for _, bare in each)))


def priced(problem: Problem, options: PoliciesOptions, saved: Saved) -> tuple[int, int]:
    """Return cost and peak of a choice, straight from the definition."""
    graph = problem.graph
    ops = {op.name: op for op in graph.ops}
    size = {tensor.name: tensor.size for tensor in graph.tensors}
    turns: list[tuple[str, bool]] = []  # op, and whether it runs (else it is taken from the store)
    for name in (graph.op_names[op] for op in graph.arrays.order.tolist()):
        for region in reversed(options.regions):
            if region.entry == name and region.name not in saved.plain:
                turns += [(op, op not in saved.ops) for op in region.replayed]
        turns.append((name, True))
    cost = peak = 0
    for k, (name, runs) in enumerate(turns):
        if not runs:
            continue
        cost += ops[name].cost
        held = ops[name].workspace
        for tensor, nbytes in size.items():
            made = [i for i, (op, on) in enumerate(turns[: k + 1]) if on and tensor in ops[op].outputs]
            if not made:
                continue
            later = turns[k + (tensor in ops[name].outputs) :]
            wanted = tensor in ops[name].outputs
            for op, on in later:
                if tensor in ops[op].outputs:
                    wanted |= not on  # stored until its turn
                    if on:
                        break
                if on and tensor in ops[op].inputs:
                    wanted = True
            else:
                wanted |= tensor in graph.outputs
            held += nbytes if wanted else 0
        peak = max(peak, held)
    return cost, peak


def agree(seed: int) -> int:
    """Compare the optimum within a random budget with all choices; return the number of replayed ops."""
    problem, options = stated(seed)
    table = [(saved, *priced(problem, options, saved)) for saved in choices(problem, options)]
    replays = Replays(problem, options.regions)
    rng = random.Random(seed)
    for saved, cost, peak in rng.sample(table, min(5, len(table))):
        certificate = problem.validate(replays.schedule(saved))
        assert certificate.accepted, (saved, certificate.first)
        assert (certificate.cost, certificate.peak) == (cost, peak), saved
    peaks = sorted({peak for _, _, peak in table})
    if not peaks:
        return 0
    budget = rng.choice([*peaks, max(peaks[0] - 1, 1)])
    problem = replace(problem, budget=budget)
    best = min((cost for _, cost, peak in table if peak <= budget), default=None)
    formulation = Policies(problem, options)
    raw = Highs().solve(formulation.build(), SolveOptions(threads=1))
    assert (None if raw.objective is None else round(raw.objective)) == best, (seed, budget, best)
    for saved, cost, peak in rng.sample(table, min(5, len(table))):
        values = formulation.values_of(saved)
        wrong = violations(formulation.build(), values)
        assert bool(wrong) == (peak > budget), (saved, wrong)
        assert formulation.build().objective.value(values) == pytest.approx(cost)
    if best is None:
        return 0
    assert raw.values is not None
    schedule = formulation.decode(raw.values)
    certificate = problem.validate(schedule)
    assert certificate.accepted and certificate.cost == best
    again = formulation.decode(formulation.encode(schedule))
    assert again.computes() == schedule.computes()
    return certificate.recomputations


def test_policies_agree_with_all_choices() -> None:
    assert sum(map(agree, range(20))) > 8


@pytest.mark.slow
def test_policies_agree_with_all_choices_of_many_steps() -> None:
    assert sum(map(agree, range(20, 400))) > 150


def chain() -> tuple[Problem, dict[str, list[str]]]:
    problem = Problem(unit_chain(8))
    return problem, contiguous_groups(problem, [0, 2, 4, 6])


@pytest.mark.parametrize("method", [PolicySearch, Policies])
def test_two_values_of_a_chain_are_replayed(method: type) -> None:
    problem, groups = chain()
    options = PoliciesOptions(regions_of(problem, groups))
    found = solve(replace(problem, budget=8), method, "highs" if method is Policies else "cp-sat",
                  method_options=options, stop=20)  # fmt: skip
    # 10 units without recomputation: two values less are held, each is computed once more, of 17 computes
    assert found.overhead == pytest.approx(100 * 2 / 17) and found.certificate is not None
    assert found.certificate.peak <= 8
    if method is Policies:
        assert found.status.value == "optimal"
        assert str(found.scope).endswith("selective checkpointing of the given regions")


def test_schedules_that_no_policy_expresses_are_refused() -> None:
    problem, groups = chain()
    formulation = Policies(problem, PoliciesOptions(regions_of(problem, groups)))
    reference = Schedule.reference(problem.graph)
    assert formulation.decode(formulation.encode(reference)).computes() == reference.computes()
    replayed = Replays(problem, formulation.options.regions).schedule(Saved())
    names = replayed.computes()
    late = [*names[:9], names[11], *names[9:11], *names[12:]]  # g7 before the replay of its region
    with refused("problem.no-policy", culprit="g7"):
        formulation.encode(Schedule.from_steps([("compute", name) for name in late]))


def test_regions_that_do_not_fit_are_refused() -> None:
    problem, groups = chain()
    with refused("problem.region", culprit="f9"):
        regions_of(problem, {"a": ["f9"]})
    with refused("problem.region", culprit="g1"):
        regions_of(problem, {"a": ["g1"]})
    with refused("problem.region", culprit="f1"):
        regions_of(problem, {"a": ["f0", "f1"], "b": ["f1"]})
    with refused("problem.region", culprit=problem.graph.name):
        Policies(problem)
    first, second, *_ = regions_of(problem, groups)
    with refused("problem.region", culprit=first.name):
        Replays(problem, (replace(first, replayed=("f1",)),))
    with refused("problem.region", culprit="f2"):
        Replays(problem, (second, replace(second, name="again")))
    locked = replace(first, unsavable=frozenset({"f0"}))
    with refused("problem.unsavable", culprit="f0"):
        Replays(problem, (locked,)).schedule(Saved(frozenset({"f0"})))
    b = GraphBuilder("buffer")
    b.tensor("sum", 1)
    for name in ("f0", "f1"):
        b.op(name, outputs=["sum"], phase="forward")
    b.op("loss", inputs=["sum"], size=1, phase="loss")
    b.op("g", inputs=["loss", "sum"], size=1, phase="backward")
    buffer = Problem(b.build())
    with refused("problem.region-buffer", culprit="f0"):
        Replays(buffer, regions_of(buffer, {"a": ["f0"]}))
    with refused("problem.order-rule"):
        Policies(replace(problem, order=OrderRule.FREE), PoliciesOptions((first,)))
