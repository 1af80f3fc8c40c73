"""Graphs for every batch size: memory and cost are affine in the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph, Op, Tensor
from remat.runtime.text import nearest


@dataclass(frozen=True, slots=True)
class Affine:
    """Value ``constant + per_sample * batch``; both coefficients are non-negative integers.

    Examples
    --------
    >>> Affine(10, 3).at(4)
    22
    """

    constant: int
    per_sample: int

    def at(self, batch: int) -> int:
        """Return the value at a batch size."""
        return self.constant + self.per_sample * batch


@dataclass(frozen=True, eq=False)
class AffineGraph:
    """Graph for every batch size: ops and tensors are fixed; sizes, workspaces and costs are affine in the batch size.

    Attributes
    ----------
    pattern : ComputeGraph
        Graph that provides everything except the numbers.
    sizes : tuple of Affine
        Bytes, by position in ``pattern.tensors``.
    workspaces, costs : tuple of Affine
        By position in ``pattern.ops``.
    constant_memory : Affine
        Bytes resident throughout: parameters are constant, the input batch grows.
    name : str

    Examples
    --------
    >>> from remat.graphs.zoo import vgg16
    >>> family = AffineGraph.of(vgg16)
    >>> family.name, family.constant_memory, family.at(256) == vgg16(256)
    ('vgg16', Affine(constant=1106860352, per_sample=602112), False)
    >>> family.at(256).digest == vgg16(256).digest, family.at(256).name
    (True, 'vgg16-b256')
    """

    pattern: ComputeGraph
    sizes: tuple[Affine, ...]
    workspaces: tuple[Affine, ...]
    costs: tuple[Affine, ...]
    constant_memory: Affine
    name: str

    @classmethod
    def of(cls, maker: Callable[[int], ComputeGraph]) -> AffineGraph:
        """Fit a family to the graphs of `maker`, such as a function of the zoo, for batch sizes 1, 2 and 3."""
        return cls.fit({batch: maker(batch) for batch in (1, 2, 3)})

    @classmethod
    def fit(cls, graphs: Mapping[int, ComputeGraph]) -> AffineGraph:
        """Fit a family to graphs of one network: the first two batch sizes determine the lines, the others check them.

        Raises
        ------
        GraphError
            For fewer than two batch sizes; for graphs that differ in more than their numbers; for a number that is not
            ``constant + per_sample * batch`` with non-negative integers, naming its tensor or op.
        """
        if len(graphs) < 2:
            raise GraphError("a line needs graphs at two batch sizes or more")
        for batch in graphs:
            check_batch(batch)
        first, *others = graphs.values()
        for other in others:
            _check_same(first, other)
        tensors = {b: [g.tensors[g.tensor_index[t.name]] for t in first.tensors] for b, g in graphs.items()}
        ops = {b: [g.ops[g.op_index[o.name]] for o in first.ops] for b, g in graphs.items()}

        def lines(what: str, of: str, items: Mapping[int, Sequence[Tensor | Op]]) -> tuple[Affine, ...]:
            return tuple(
                _line(
                    {b: getattr(each, what) for b, each in zip(items, row, strict=True)},
                    f"{what} of {of} {row[0].name!r}",
                )
                for row in zip(*items.values(), strict=True)
            )

        return cls(
            first,
            lines("size", "tensor", tensors),
            lines("workspace", "op", ops),
            lines("cost", "op", ops),
            _line({b: g.constant_memory for b, g in graphs.items()}, "constant memory"),
            first.name.removesuffix(f"-b{next(iter(graphs))}"),
        )

    @classmethod
    def scaled(
        cls,
        graph: ComputeGraph,
        batch: int,
        independent: Iterable[str] = (),
        *,
        constant_costs: bool = False,
        constant_memory_per_sample: int = 0,
    ) -> AffineGraph:
        """Scale one graph: tensors, workspaces and costs are proportional to the batch, except those listed.

        Parameters
        ----------
        batch : int
            Batch size of `graph`.
        independent : iterable of str
            Tensors (such as gradients of parameters) that do not grow with the batch, and ops whose workspace does
            not grow.
        constant_costs : bool
            Keep the costs. Overheads stay the same, and measured times need not be divisible by the batch size.
        constant_memory_per_sample : int
            Part of the graph's constant memory that each sample occupies (its input), in bytes.

        Raises
        ------
        GraphError
            For a name that is not in the graph; naming the tensor or op whose size, workspace or cost is not divisible
            by the batch.
        """
        check_batch(batch)
        fixed = set(independent)
        for name in sorted(fixed):
            if name not in graph.tensor_index and name not in graph.op_index:
                hint = nearest(name, [*graph.tensor_index, *graph.op_index])
                raise GraphError(f"there is no tensor or op {name!r} in graph {graph.name!r}{hint}")

        def share(value: int, what: str, constant: bool) -> Affine:
            if constant:
                return Affine(value, 0)
            if value % batch:
                raise GraphError(
                    f"{what} is {value:,}, which is no multiple of the batch size {batch}; "
                    "name what does not grow with it as independent"
                )
            return Affine(0, value // batch)

        constant = graph.constant_memory - batch * constant_memory_per_sample
        if constant < 0 or constant_memory_per_sample < 0:
            raise GraphError(
                f"constant memory of {graph.constant_memory:,} bytes has no room for {batch} samples of "
                f"{constant_memory_per_sample:,} bytes"
            )
        return cls(
            graph,
            tuple(share(t.size, f"size of tensor {t.name!r}", t.name in fixed) for t in graph.tensors),
            tuple(share(o.workspace, f"workspace of op {o.name!r}", o.name in fixed) for o in graph.ops),
            tuple(share(o.cost, f"cost of op {o.name!r}", constant_costs) for o in graph.ops),
            Affine(constant, constant_memory_per_sample),
            graph.name.removesuffix(f"-b{batch}"),
        )

    def at(self, batch: int) -> ComputeGraph:
        """Return the graph at a batch size; its meta data contain only the batch size.

        Raises
        ------
        GraphError
            If `batch` is not a positive integer, or the graph becomes too large for exact sums.
        """
        check_batch(batch)
        pattern = self.pattern
        size = {t.name: line.at(batch) for t, line in zip(pattern.tensors, self.sizes, strict=True)}

        def pairs(op: Op) -> tuple[tuple[str, str], ...]:  # sizes must be equal at this batch size, too
            return tuple(pair for pair in op.in_place if size[pair[0]] == size[pair[1]])

        return replace(
            pattern,
            name=f"{self.name}-b{batch}",
            tensors=[replace(t, size=size[t.name]) for t in pattern.tensors],
            ops=[
                replace(op, cost=cost.at(batch), workspace=workspace.at(batch), in_place=pairs(op))
                for op, cost, workspace in zip(pattern.ops, self.costs, self.workspaces, strict=True)
            ],
            constant_memory=self.constant_memory.at(batch),
            meta={"batch": batch},
        )

    @property
    def grows(self) -> bool:
        """True when any memory grows with the batch."""
        return any(line.per_sample for line in (*self.sizes, *self.workspaces, self.constant_memory))

    def uneven_op(self) -> str | None:
        """Return an op whose cost does not grow in proportion to the others, or None if there is none.

        With such an op, the overhead of a schedule depends on the batch size.
        """
        lines = [(op.name, line) for op, line in zip(self.pattern.ops, self.costs, strict=True) if line != Affine(0, 0)]
        for name, line in lines[1:]:
            if line.constant * lines[0][1].per_sample != line.per_sample * lines[0][1].constant:
                return name
        return None


def check_batch(batch: object) -> None:
    """Refuse a batch size that is not a positive integer."""
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise GraphError(f"a batch size must be a whole number from 1, not {batch!r}")


def _line(values: Mapping[int, int], what: str) -> Affine:
    """Return the line through the values at two or more batch sizes."""
    (one, first), (two, second), *_ = values.items()
    slope, rest = divmod(second - first, two - one)
    line = Affine(first - slope * one, slope)
    if rest or slope < 0 or line.constant < 0 or any(line.at(batch) != value for batch, value in values.items()):
        shown = ", ".join(f"{value:,} at {batch}" for batch, value in sorted(values.items()))
        raise GraphError(f"{what} is not affine in the batch size: {shown}")
    return line


def _check_same(one: ComputeGraph, two: ComputeGraph) -> None:
    """Refuse graphs that differ in more than their numbers."""
    for what, mine, theirs in (("op", one.op_index, two.op_index), ("tensor", one.tensor_index, two.tensor_index)):
        for name in [*mine, *theirs]:
            if name not in mine or name not in theirs:
                raise GraphError(f"{what} {name!r} is in only one of the graphs {one.name!r} and {two.name!r}")
    for op in one.ops:
        other = two.ops[two.op_index[op.name]]
        if replace(op, cost=0, workspace=0) != replace(other, cost=0, workspace=0):
            raise GraphError(f"op {op.name!r} is not the same in the graphs {one.name!r} and {two.name!r}")
    for what in ("inputs", "outputs", "order", "cost_unit"):
        if getattr(one, what) != getattr(two, what):
            raise GraphError(f"{what.replace('_', ' ')} of the graphs {one.name!r} and {two.name!r} differ")
