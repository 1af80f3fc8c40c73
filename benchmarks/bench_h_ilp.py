"""H-ILP on GPT-like stacks of blocks: how large the model is, and what solvers make of it in a given time.

    python benchmarks/bench_h_ilp.py --layers 8 --options 4 --budget 50% --time-limit 60

Each block is a composite, whose options save different sets of its tensors: from everything down to nothing.
"""

import argparse
import time

import numpy as np

from remat import Problem, validate
from remat.backends.base import SolveOptions
from remat.deadline import Deadline
from remat.formulations.hierarchical import Composite, HIlp, HIlpOptions, Option
from remat.graphs.zoo import gpt
from remat.hierarchy.partition.blocks import Blocks
from remat.registry import make_backend


def option(problem, group, share):
    """Saves the tensors of the group that are cheapest to hold for what they cost, up to a share of all bytes."""
    arrays = problem.graph.arrays
    inside = np.zeros(len(arrays.size), dtype=bool)
    for op in group.forward.tolist():
        inside[arrays.op_outputs[op]] = True
    maker = {t: int(arrays.producers[t][0]) for t in np.flatnonzero(inside).tolist()}
    read = {t for op in group.backward.tolist() for t in arrays.op_inputs[op].tolist() if t in maker}
    by = sorted(read, key=lambda t: -arrays.cost[maker[t]] / max(1, arrays.size[t]))
    held, most = set(), share * sum(int(arrays.size[t]) for t in read)
    for t in by:
        if sum(int(arrays.size[s]) for s in held) + arrays.size[t] <= most:
            held.add(t)
    steps, there = [], set(held)

    def compute(op):
        for t in arrays.op_inputs[op].tolist():
            if t in maker and t not in there:
                compute(maker[t])
        steps.append(op)
        there.update(arrays.op_outputs[op].tolist())

    for op in group.backward.tolist():
        compute(op)
    return Option(group.forward, steps)


def composites(problem, count):
    found = []
    for group in Blocks().partition(problem).root.children:
        if len(group.forward) < 2:
            continue
        if not len(group.backward):
            found.append(Composite(group.name, group.forward, (), [Option(group.forward)]))
            continue
        shares = np.linspace(1, 0, count)
        options = {o.backward.tobytes(): o for o in (option(problem, group, share) for share in shares)}
        options = [*options.values(), Option(group.forward)]
        found.append(Composite(group.name, group.forward, group.backward, options))
    return tuple(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--options", type=int, default=4)
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--backends", default="highs,cp-sat")
    parser.add_argument("--time-limit", type=float, default=60)
    parser.add_argument("--limit", type=float, help="leave out what costs more than this many times the least")
    given = parser.parse_args()
    problem = Problem(gpt(layers=given.layers), given.budget)
    parts = composites(problem, given.options)
    for corrections in (True, False):
        begin = time.perf_counter()
        formulation = HIlp(problem, HIlpOptions(parts, corrections))
        if given.limit:
            formulation.leave_out_above(int(given.limit * problem.graph.base_cost))
        model = formulation.build()
        entries = sum(len(record.value) for record in model.records)
        print(
            f"{len(problem.graph.ops)} ops, {formulation.tables.T} nodes, {len(formulation.tables.runs)} choices, "
            f"corrections {corrections}: {model.num_vars} variables, {model.num_constraints} rows, {entries} entries, "
            f"estimate {formulation.estimate()}, built in {time.perf_counter() - begin:.2f} s"
        )
        for name in given.backends.split(","):
            begin = time.perf_counter()
            options = SolveOptions(deadline=Deadline.after(given.time_limit), threads=1)
            raw = make_backend(name).solve(model, options)
            line = f"  {name}: {raw.status} in {time.perf_counter() - begin:.1f} s"
            if raw.values is not None:
                certificate = validate(problem.graph, formulation.decode(raw.values), problem.rules)
                base = problem.graph.base_cost
                bound = f"{100 * (raw.bound / base - 1):.3f}" if raw.bound is not None else "none"
                line += (
                    f", +{100 * (raw.objective / base - 1):.3f} % (bound {bound}), schedule "
                    f"+{100 * (certificate.cost / base - 1):.3f} %, peak {certificate.peak / problem.budget_bytes:.3f} "
                    f"of the budget, {'certified' if certificate.accepted else certificate.first}"
                )
            print(line)


if __name__ == "__main__":
    main()
