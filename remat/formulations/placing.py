"""Places of transfers and frees in a program: fetches as early and frees as late as the budget allows."""

from __future__ import annotations

from collections import Counter

from remat.formulations.programs import COMPUTE, FETCH, FREE, OFFLOAD, Program
from remat.problem import Problem
from remat.problem.op_sequence import standing_buffers


class Placement:
    """A program of computes, offloads and fetches without frees, whose transfers are placed.

    Every value is freed after its last use before it is made again, or later while the budget allows: a free during a
    write waits for it. Fetches keep their sequence.
    """

    def __init__(self, problem: Problem, program: Program) -> None:
        self.problem = problem
        arrays = problem.graph.arrays
        self.inputs, self.outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
        self.size, self.workspace = arrays.size.tolist(), arrays.workspace.tolist()
        self.stays: list[bool] = arrays.is_input.tolist()
        self.standing: list[bool] = standing_buffers(problem)[0].tolist()
        self.held = arrays.input_bytes + problem.constant_bytes
        self.steps = list(zip(*program, strict=True))

    def program(self, *, ahead: bool) -> Program:
        """Return the program with frees; with `ahead`, fetches move ahead."""
        if ahead:
            self._hoist()
        return Program.of(self._freed())

    def _touched(self, step: tuple[int, int]) -> list[int]:
        """Return the tensors that a step reads or makes, without graph inputs."""
        kind, target = step
        touched = [*self.inputs[target], *self.outputs[target]] if kind == COMPUTE else [target]
        return [t for t in touched if not self.stays[t]]

    def _made(self, step: tuple[int, int]) -> list[int]:
        kind, target = step
        return list(self.outputs[target]) if kind == COMPUTE else [target] if kind == FETCH else []

    def _last_uses(self) -> list[list[int]]:
        """Return the tensors whose value is used for the last time, for each step."""
        wanted = self.problem.kept.tolist()
        last: list[list[int]] = []
        for step in reversed(self.steps):
            made = self._made(step)
            last.append([t for t in self._touched(step) if not wanted[t]])
            for t in self._touched(step):
                wanted[t] = True
            for t in made:
                reads_it = step[0] == COMPUTE and t in self.inputs[step[1]]
                wanted[t] = reads_it or self.standing[t]  # a buffer lives from its first contribution
        return last[::-1]

    def _use(self) -> list[int]:
        """Return the bytes of the device at each step, if values are freed at once."""
        live: set[int] = set()
        total, use = self.held, []
        for step, last in zip(self.steps, self._last_uses(), strict=True):
            for t in self._made(step):
                if t not in live:
                    live.add(t)
                    total += self.size[t]
            use.append(total + (self.workspace[step[1]] if step[0] == COMPUTE else 0))
            for t in last:
                if t in live:
                    live.discard(t)
                    total -= self.size[t]
        return use

    def _hoist(self) -> None:
        """Move each fetch to the earliest step at which the budget allows it, after those before it."""
        budget = self.problem.budget_bytes
        use = self._use()
        earliest, previous = dict[int, int](), 0  # after the last touch of each tensor, and after the last fetch
        for i in range(len(self.steps)):
            kind, tensor = self.steps[i]
            if kind == FETCH:
                size, place = self.size[tensor], i
                least = max(previous, earliest.get(tensor, 0))
                while place > least and (budget is None or use[place - 1] + size <= budget):
                    place -= 1
                if place < i:
                    self.steps.insert(place, self.steps.pop(i))
                    use.pop(i)
                    use[place:i] = [each + size for each in use[place:i]]
                    use.insert(place, use[place])
                    earliest = {t: after + (after > place) for t, after in earliest.items()}
                previous = earliest[tensor] = place + 1
            else:
                earliest.update(dict.fromkeys(self._touched(self.steps[i]), i + 1))

    def _freed(self) -> list[tuple[int, int]]:
        """Return the steps with frees, each before the first step that needs its memory."""
        budget = self.problem.budget_bytes
        live: set[int] = set()
        dead: list[int] = []
        total = self.held
        done: list[tuple[int, int]] = []

        def free(tensor: int) -> None:
            nonlocal total
            dead.remove(tensor)
            live.discard(tensor)
            total -= self.size[tensor]
            done.append((FREE, tensor))

        for step, last in zip(self.steps, self._last_uses(), strict=True):
            made = self._made(step)
            for t in made:
                if t in dead:
                    free(t)
            need = sum(self.size[t] for t in made if t not in live)
            need += self.workspace[step[1]] if step[0] == COMPUTE else 0
            while dead and budget is not None and total + need > budget:
                free(dead[0])
            total += sum(self.size[t] for t in made if t not in live)
            live.update(made)
            done.append(step)
            dead += [t for t in last if t in live and t not in dead]
        return done


def placed(problem: Problem, makes: Program, written: set[int], *, ahead: bool = True) -> Program:
    """Return a program of computes and fetches with the writes of tensors after their first computes, and frees.

    With `ahead`, fetches are issued as early as the budget allows, otherwise where they are given. Computes and
    transfers whose results are never read are left out.
    """
    outputs = problem.graph.arrays.op_outputs.shared_lists()
    seen: Counter[int] = Counter()
    steps: list[tuple[int, int]] = []
    for kind, target in zip(*makes, strict=True):
        steps.append((kind, target))
        if kind == COMPUTE:
            seen[target] += 1
            if seen[target] == 1:
                steps += [(OFFLOAD, t) for t in outputs[target] if t in written]
    return Placement(problem, Program.of(steps).useful(problem)).program(ahead=ahead)
