"""Second simulator, slow and by definitions, with random graphs and schedules."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from remat.graphs import ComputeGraph, Op, Tensor
from remat.schedule import Schedule

Steps = list[tuple[str, str]]
MOVES = ("offload", "fetch", "discard")


@dataclass
class Outcome:
    memory: list[int] = field(default_factory=list)
    faults: list[tuple] = field(default_factory=list)  # (step, rule, op, tensor)
    instances: set[tuple] = field(default_factory=set)  # (tensor, start, end)
    redundant: int = 0
    masked: int = 0
    host: list[int] = field(default_factory=list)  # bytes of the copies after each step


def writers(graph: ComputeGraph, tensor: str) -> set[str]:
    return {op.name for op in graph.ops if tensor in op.outputs}


def is_needed(graph: ComputeGraph, steps: Steps, tensor: str, step: int, kept: set[str]) -> bool:
    """True when the value of `tensor` after `step` is read before a new instance of it is complete."""
    ops = {op.name: op for op in graph.ops}
    fresh: set[str] = set()
    for word, name in steps[step + 1 :]:
        if name == tensor and word == "offload":
            return fresh != writers(graph, tensor)
        if name == tensor and word == "fetch":
            return False
        if word != "compute" or name not in ops:
            continue
        if tensor in ops[name].inputs:
            return fresh != writers(graph, tensor)
        if tensor in ops[name].outputs:
            fresh.add(name)
    return tensor in kept and fresh != writers(graph, tensor)


def naive(  # noqa: C901 - plain loops, to be checked by eye
    graph: ComputeGraph, steps: Steps, keep: frozenset[str] = frozenset(), constant: int = 0
) -> Outcome:
    """Run `steps`; frees are implied if there are none."""
    sizes = {t.name: t.size for t in graph.tensors}
    ops = {op.name: op for op in graph.ops}
    kept = {*graph.outputs, *keep}
    implied = not any(word == "free" for word, _ in steps)
    live: dict[str, tuple[int, set[str]]] = {name: (0, set()) for name in graph.inputs}
    seen: set[str] = set()
    out = Outcome()
    copies: set[str] = set()  # on the host
    leaving: set[str] = set()  # copies that go when their last fetch has ended

    def held() -> int:
        return constant + sum(sizes[name] for name in live)

    def end(name: str, step: int) -> None:
        out.instances.add((name, live.pop(name)[0], step))

    def is_last_fetch(step: int) -> bool:
        tensor = steps[step][1]
        for word, name in steps[step + 1 :]:
            if name == tensor and word in MOVES:
                return word == "offload"
        return True

    def fault_of_move(word: str, name: str) -> str:
        complete = name in live and live[name][1] == writers(graph, name)
        if word == "offload":
            if complete:
                return "second host copy" if name in copies else ""
            return "offload of an incomplete tensor" if name in live else "offload of a dead tensor"
        if name not in copies:
            return "no host copy"
        return "fetch of a live tensor" if word == "fetch" and name in live else ""

    def compute(k: int, name: str) -> None:
        op = ops[name]
        for read in op.inputs:
            if read not in live:
                out.faults.append((k, "input not live", name, read))
            elif live[read][1] != writers(graph, read):
                out.faults.append((k, "input incomplete", name, read))
        news = 0
        for write in op.outputs:
            if write not in live:
                live[write] = (k, set())
            if name not in live[write][1]:
                live[write][1].add(name)
                news += 1
            elif len(writers(graph, write)) > 1:
                out.masked += 1
        out.redundant += news == 0 and name in seen
        seen.add(name)

    def move(k: int, word: str, name: str) -> None:
        if fault := fault_of_move(word, name):
            out.faults.append((k, fault, None, name))
        elif word == "offload":
            copies.add(name)
        elif word == "fetch":
            live[name] = (k, writers(graph, name))
            if is_last_fetch(k):
                leaving.add(name)
        else:
            copies.remove(name)
            leaving.discard(name)

    for k, (word, name) in enumerate(steps):
        awaited: set[str] = set()  # tensors whose fetch has ended after this step
        workspace = 0
        if name not in (ops if word == "compute" else sizes):
            names = (name, None) if word == "compute" else (None, name)
            out.faults.append((k, "unknown op" if word == "compute" else "unknown tensor", *names))
        elif word == "compute":
            compute(k, name)
            awaited |= set(ops[name].inputs)
            workspace = ops[name].workspace
        elif word != "free":
            move(k, word, name)
        elif name in graph.inputs:
            out.faults.append((k, "free of a graph input", None, name))
        elif name not in live:
            out.faults.append((k, "free of a dead tensor", None, name))
        else:
            end(name, k)
            awaited.add(name)
        out.memory.append(held() + workspace)
        out.host.append(sum(sizes[name] for name in copies))
        known = name in (ops if word == "compute" else sizes)
        if implied and known and word != "discard":
            for tensor in [t for t in live if t not in graph.inputs]:
                if not is_needed(graph, steps, tensor, k, kept):
                    end(tensor, k + 1)
                    awaited.add(tensor)
        copies -= awaited & leaving
        leaving -= awaited
    out.faults += [(None, "op not computed", o, None) for o in ops if o not in seen]
    for name in kept:
        if name not in live:
            out.faults.append((None, "output not live", None, name))
        elif live[name][1] != writers(graph, name):
            out.faults.append((None, "output incomplete", None, name))
    for name in list(live):
        end(name, len(steps))
    return out


def random_graph(random: Random, most_ops: int = 7, most_size: int = 100) -> ComputeGraph:
    """Return a graph with several or no outputs per op, buffers, inputs, outputs, workspaces, size 0 and cost 0."""
    count = random.randint(1, most_ops)
    ops = [f"o{k}" for k in range(count)]
    reads: dict[str, list[str]] = {o: [] for o in ops}
    writes: dict[str, list[str]] = {o: [] for o in ops}
    tensors, inputs = [], []
    for k in range(random.randint(1, 2 * count)):
        name = f"t{k}"
        tensors.append(
            Tensor(name, random.choice([0, random.randint(1, -(-most_size // 10)), random.randint(1, most_size)]))
        )
        by = sorted(random.sample(range(count), min(count, random.choice([0, 1, 1, 1, 1, 2, 2, 3]))))
        for writer in by:
            writes[ops[writer]].append(name)
        if not by:
            inputs.append(name)
        later = range(by[-1] + 1 if by else 0, count)
        for reader in random.sample(later, random.randint(0, min(3, len(later)))):
            reads[ops[reader]].append(name)
    listed = [
        Op(o, tuple(reads[o]), tuple(writes[o]), random.choice([0, random.randint(1, 9)]), random.choice([0, 0, 5]))
        for o in ops
    ]
    random.shuffle(listed)
    random.shuffle(tensors)
    outputs = [t.name for t in tensors if random.random() < 0.2]
    return ComputeGraph("random", tensors, listed, inputs, outputs, ops, constant_memory=random.randint(0, 9))


def random_valid_steps(random: Random, graph: ComputeGraph, frees: bool, moves: bool = False) -> Steps:
    """Return a random valid walk with frees and moves, followed by all ops in order, so that none is missing."""
    live: dict[str, set[str]] = {name: set() for name in graph.inputs}
    copies: set[str] = set()
    steps: Steps = []

    def compute(op: Op) -> None:
        steps.append(("compute", op.name))
        for write in op.outputs:
            live.setdefault(write, set()).add(op.name)

    def move() -> None:
        complete = [t for t in live if live[t] == writers(graph, t) and t not in copies]
        absent = [t for t in copies if t not in live]
        choices = (
            [("offload", t) for t in complete] + [("fetch", t) for t in absent] * 3 + [("discard", t) for t in copies]
        )
        if not choices:
            return
        word, name = random.choice(choices)
        steps.append((word, name))
        if word == "fetch":
            live[name] = writers(graph, name)
        (copies.add if word == "offload" else copies.discard if word == "discard" else len)(name)

    for _ in range(random.randint(0, (6 if moves else 3) * len(graph.ops))):
        able = [op for op in graph.ops if all(r in live and live[r] == writers(graph, r) for r in op.inputs)]
        gone = [t for t in live if t not in graph.inputs]
        if frees and gone and random.random() < 0.4:
            name = random.choice(gone)
            del live[name]
            steps.append(("free", name))
        elif moves and random.random() < 0.5:
            move()
        elif able:
            compute(random.choice(able))
    by_name = {op.name: op for op in graph.ops}
    for name in graph.order or ():
        compute(by_name[name])
    return steps


def random_steps(random: Random, graph: ComputeGraph, words: tuple[str, ...] = ("free",)) -> Steps:
    """Return random steps, some with unknown names; those with tensors have one of `words`."""
    ops, tensors = [*graph.op_names, *graph.op_names, "missing"], [*graph.tensor_names, "nothing"]
    share = random.choice([0.0, 0.3])
    return [
        (random.choice(words), random.choice(tensors)) if random.random() < share else ("compute", random.choice(ops))
        for _ in range(random.randint(0, 25))
    ]


def mutated(random: Random, graph: ComputeGraph, steps: Steps) -> Steps:
    """Return steps of which a few are dropped, doubled, swapped, or replaced by others."""
    steps = list(steps)
    for _ in range(random.randint(1, 3)):
        k = random.randint(0, len(steps) - 1) if steps else 0
        what = random.choice(["drop", "double", "swap", "other"])
        if what == "drop":
            del steps[k : k + 1]
        elif what == "double":
            steps[k:k] = steps[k : k + 1]
        elif what == "swap" and steps:
            other = random.randint(0, len(steps) - 1)
            steps[k], steps[other] = steps[other], steps[k]
        else:
            steps[k : k + 1] = random_steps(random, graph, ("free", *MOVES))[:1]
    return steps


def as_schedule(random: Random, graph: ComputeGraph, steps: Steps) -> Schedule:
    """Return a schedule with its own name tables, or with those of the graph if possible."""
    known = all(name in (graph.op_index if word == "compute" else graph.tensor_index) for word, name in steps)
    own = Schedule.from_steps(steps)
    if not known or random.random() < 0.5:
        return own
    targets = own.targets.copy()
    targets[:] = [(graph.op_index if word == "compute" else graph.tensor_index)[name] for word, name in steps]
    return Schedule.for_graph(graph, own.kinds.copy(), targets)
