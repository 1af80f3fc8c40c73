"""Dimension rule: which axes of the operands of an op are parallel, reduced, or fixed.

*Parallel*: a slice of the output depends only on the same slice of the axis. The op on a concatenation along the axis
is the concatenation of the op on its parts. *Reduced*: the op is linear and sums over the axis. The op on a
concatenation along the axis is the sum of partial ops on the parts. Other axes, including sliding windows, are *fixed*.

One table defines the roles for each family of ops (`TABLE`). The attributes ``parallel_axes`` and ``reduced_axes`` of
an op override the table; they list axes of its first operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from remat.errors import GraphError
from remat.graphs.graph import Op
from remat.graphs.rewriting.annotations import Attributes, Shape, axis_of, checked_axis, is_whole
from remat.graphs.rewriting.kinds import Kind, kind_of
from remat.runtime.text import short


class Role(StrEnum):
    """Role of an axis of an operand."""

    PARALLEL = "parallel"
    REDUCED = "reduced"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class AxisRole:
    """Role of an axis and, if it is parallel, the corresponding axis of the output."""

    role: Role
    output: int | None = None


FIXED, REDUCED = AxisRole(Role.FIXED), AxisRole(Role.REDUCED)


@dataclass(frozen=True)
class Reading:
    """Input of the dimension rule: an op, one of its operands, and shapes."""

    op: Op
    attributes: Attributes
    operand: int
    """Number of the operand, from 0."""
    shapes: Sequence[Shape]
    """Shapes of all its operands."""
    output: Shape
    """Shape of the output."""
    channels: int | None
    """Axis of channels; None if unknown (see :func:`channel_axis`)."""

    @property
    def shape(self) -> Shape:
        """Shape of the operand."""
        return self.shapes[self.operand]

    @property
    def rank(self) -> int:
        """Number of axes of the operand."""
        return len(self.shape)


Roles = tuple[AxisRole, ...]


def parallel(axis: int) -> AxisRole:
    """Return the parallel role with this axis of the output."""
    return AxisRole(Role.PARALLEL, axis)


def roles(reading: Reading) -> Roles:
    """Return the role of each axis of an operand; parallel axes whose extents do not match the output's are fixed.

    Raises
    ------
    GraphError
        Naming the op, for wrong attributes: invalid axes, one axis with two roles, groups that are not a number.

    Examples
    --------
    >>> op = Op("a", ("x",), ("y",), type="Conv")
    >>> [r.role.value for r in roles(Reading(op, {}, 0, [(1, 9, 9, 8)], (1, 9, 9, 4), 3))]
    ['parallel', 'fixed', 'fixed', 'reduced']
    """
    return tuple(
        role
        if role.output is None or (role.output < len(reading.output) and not reading.output[role.output] % extent)
        else FIXED
        for role, extent in zip(claimed(reading), reading.shape, strict=True)
    )


def claimed(reading: Reading) -> Roles:
    """Return the roles by attributes or table; :func:`roles` makes those with inconsistent extents fixed."""
    given = _given(reading)
    return given if given is not None else TABLE[kind_of(reading.op.type, reading.attributes)](reading)


def _given(reading: Reading) -> Roles | None:
    """Return the roles that attributes of the op define for its first operand, if any."""
    found = [FIXED] * reading.rank
    keys = [key for key in ("parallel_axes", "reduced_axes") if reading.attributes.get(key) is not None]
    if not keys or reading.operand > 0:
        return None
    for key in keys:
        axes, what = reading.attributes[key], f"attribute {key!r} of op {reading.op.name!r}"
        if not isinstance(axes, list | tuple):
            raise GraphError(f"{what} must be a list, not {short(axes)}")
        for given in axes:
            axis = checked_axis(given, reading.rank, what)
            if found[axis] is not FIXED:
                raise GraphError(f"op {reading.op.name!r} gives axis {axis} twice in parallel_axes and reduced_axes")
            found[axis] = parallel(axis) if key == "parallel_axes" else REDUCED
    return tuple(found)


def channel_axis(op: Op, attributes: Attributes, rank: int, layout: str | None) -> int | None:
    """Return the axis of channels by the op's attributes or the graph's layout; None if unknown.

    Raises
    ------
    GraphError
        Naming the op, for an invalid axis, or a layout that is not a word with one C.

    Examples
    --------
    >>> op = Op("a", ("x",), ("y",), type="Conv")
    >>> channel_axis(op, {"layout": "NHWC"}, 4, None), channel_axis(op, {"channel_axis": -1}, 4, None)
    (3, 3)
    """
    axis = axis_of(attributes, "channel_axis", rank, op.name)
    if axis is not None:
        return axis
    named = attributes.get("layout", attributes.get("data_format"))
    if named is not None:
        checked_layout(named, f"the layout of op {op.name!r}")
        layout = named
    if layout is None:
        return None
    # a layout of images also determines whether channels come first or last in a tensor with fewer axes
    return 1 % rank if layout.upper().index("C") == 1 else rank - 1


def checked_layout(layout: object, what: str) -> str:
    """Return a layout such as NHWC in upper case, after checking that it is a short word with one C, second or last."""
    word = layout.upper() if isinstance(layout, str) and len(layout) < 9 else ""
    if word.count("C") != 1 or word.index("C") not in {1, len(word) - 1}:
        raise GraphError(f"{what} must be a word like NHWC or NCHW, not {short(layout)}")
    return word


def guessed_layout(op: Op, attributes: Attributes, shape: Shape, output: Shape) -> str | None:
    """Return the layout implied by the shape of a convolution's weights; None if neither or both fit.

    Weights are (out, kernel..., in) or, depthwise, (1, kernel..., channels), with channels last; (out, in, kernel...)
    or (channels, 1, kernel...) with channels first.
    """
    weights = attributes.get("weight_shape")
    kind = kind_of(op.type, attributes)
    if kind not in {Kind.CONV, Kind.DEPTHWISE} or not isinstance(weights, list | tuple) or len(shape) < 3:
        return None
    if len(weights) != len(shape) or len(output) != len(shape) or not all(is_whole(w) for w in weights):
        return None
    if kind is Kind.CONV:
        last = weights[0] == output[-1] and shape[-1] % max(weights[-1], 1) == 0 and weights[-1] > 0
        first = weights[0] == output[1] and shape[1] % max(weights[1], 1) == 0 and weights[1] > 0
        if last and first and (weights[-1] == shape[-1]) != (weights[1] == shape[1]):
            last, first = weights[-1] == shape[-1], weights[1] == shape[1]
    else:
        last, first = (weights[0], weights[-1]) == (1, output[-1]), (weights[1], weights[0]) == (1, output[1])
    return None if last == first else "NHWC" if last else "NCHW"


def _fixed(reading: Reading) -> Roles:
    return (FIXED,) * reading.rank


def _batch(reading: Reading) -> Roles:
    """Make only the first axis parallel."""
    return (parallel(0), *[FIXED] * (reading.rank - 1)) if reading.rank > 1 else _fixed(reading)


def _with_channels(reading: Reading, role: AxisRole | None) -> Roles:
    """Make batch parallel, channels `role` (None: parallel), and all others fixed, including unknown channels."""
    found = list(_batch(reading))
    axis = reading.channels
    if axis is not None and 0 < axis < reading.rank:
        same = len(reading.output) == reading.rank
        # a global pooling may drop the axes that it pools
        output = axis if same else len(reading.output) - 1 if len(reading.output) > 1 else None
        found[axis] = role if role is not None else FIXED if output is None else parallel(output)
    return tuple(found)


def groups_of(reading: Reading) -> int:
    """Return the groups of a convolution."""
    groups = reading.attributes.get("groups", 1)
    if not is_whole(groups) or groups < 1:
        raise GraphError(
            f"attribute 'groups' of op {reading.op.name!r} must be a whole number from 1, not {short(groups)}"
        )
    return groups


def _conv(reading: Reading) -> Roles:
    groups = groups_of(reading)
    axis = reading.channels
    if groups == 1 or axis is None or not 0 < axis < reading.rank:
        return _with_channels(reading, REDUCED)
    return _with_channels(reading, None if groups == reading.shape[axis] else FIXED)


def _channels_parallel(reading: Reading) -> Roles:
    return _with_channels(reading, None)


def linear_axis(reading: Reading) -> int | None:
    """Return the axis that a linear layer multiplies by weights: the only changed one, or channels, or the last."""
    if len(reading.output) != reading.rank:
        return None
    changed = [axis for axis in range(reading.rank) if reading.shape[axis] != reading.output[axis]]
    if changed:
        return changed[0] if len(changed) == 1 and changed[0] in {reading.channels, reading.rank - 1} else None
    return reading.channels if reading.channels is not None and reading.rank > 3 else reading.rank - 1


def _linear(reading: Reading) -> Roles:
    summed = linear_axis(reading)
    if summed is None:
        return _fixed(reading)
    return tuple(REDUCED if axis == summed else parallel(axis) for axis in range(reading.rank))


def _matmul(reading: Reading) -> Roles:
    if len(reading.shapes) == 1:
        return _linear(reading)
    if len(reading.shapes) > 2 or {len(shape) for shape in reading.shapes} != {len(reading.output)} or reading.rank < 2:
        return _fixed(reading)
    if any(reading.attributes.get(key) for key in ("transpose_a", "transpose_b", "transA", "transB", "adj_x", "adj_y")):
        return _fixed(reading)
    rank = reading.rank
    rest = tuple(parallel(axis) for axis in range(rank - 2))
    return (*rest, parallel(rank - 2), REDUCED) if reading.operand == 0 else (*rest, REDUCED, parallel(rank - 1))


def _elementwise(reading: Reading) -> Roles:
    """Make all axes parallel, or all fixed for a smaller operand, which is broadcast."""
    if reading.shape != reading.output or str(reading.attributes.get("activation", "")).lower() == "softmax":
        return _fixed(reading)
    return tuple(parallel(axis) for axis in range(reading.rank))


def _batch_norm(reading: Reading) -> Roles:
    """Make all axes parallel for given statistics, or only channels for statistics of the batch."""
    if reading.attributes.get("training"):
        found = _with_channels(reading, None)
        return (FIXED, *found[1:])
    return _elementwise(reading)


def _but(reading: Reading, normalised: set[int]) -> Roles:
    if reading.shape != reading.output:
        return _fixed(reading)
    return _but_axes(reading, normalised)


def _slice(reading: Reading) -> Roles:
    """Make all axes but the cut one parallel; for images cut at their edges, batch and channels."""
    axis = axis_of(reading.attributes, "axis", reading.rank, reading.op.name)
    if len(reading.output) != reading.rank:
        return _fixed(reading)
    changed = {other for other in range(reading.rank) if reading.shape[other] != reading.output[other]}
    if axis is not None:
        return _fixed(reading) if changed - {axis} else _but_axes(reading, {axis})
    return _fixed(reading) if changed & {0, reading.channels} else _channels_parallel(reading)


def _but_axes(reading: Reading, fixed: set[int]) -> Roles:
    return tuple(FIXED if axis in fixed else parallel(axis) for axis in range(reading.rank))


def _layer_norm(reading: Reading) -> Roles:
    """Make the axes before the first normalised one parallel, by default all but the last."""
    first = axis_of(reading.attributes, "axis", reading.rank, reading.op.name)
    first = reading.rank - 1 if first is None else first
    return _but(reading, set(range(first, reading.rank)))


def _softmax(reading: Reading) -> Roles:
    axis = axis_of(reading.attributes, "axis", reading.rank, reading.op.name)
    return _but(reading, {reading.rank - 1 if axis is None else axis})


def _reduce_sum(reading: Reading) -> Roles:
    axes = reading.attributes.get("axes")
    if not isinstance(axes, list | tuple):
        return _fixed(reading)
    summed = {checked_axis(axis, reading.rank, f"attribute 'axes' of op {reading.op.name!r}") for axis in axes}
    if len(reading.output) != reading.rank:
        return tuple(REDUCED if axis in summed else FIXED for axis in range(reading.rank))
    return tuple(REDUCED if axis in summed else parallel(axis) for axis in range(reading.rank))


#: Roles of the axes of an operand, for each family of ops.
TABLE: Mapping[Kind, Callable[[Reading], Roles]] = {
    **dict.fromkeys((Kind.SOURCE, Kind.CONCAT, Kind.SPLIT, Kind.FINISH, Kind.OPAQUE), _fixed),
    **dict.fromkeys((Kind.CONV, Kind.CONV_TRANSPOSE), _conv),
    **dict.fromkeys(
        (Kind.DEPTHWISE, Kind.INSTANCE_NORM, Kind.POOL, Kind.GLOBAL_POOL, Kind.SPATIAL), _channels_parallel
    ),
    **dict.fromkeys((Kind.GROUP_NORM, Kind.COMPOSITE), _batch),
    Kind.LINEAR: _linear,
    Kind.MATMUL: _matmul,
    Kind.ELEMENTWISE: _elementwise,
    Kind.BATCH_NORM: _batch_norm,
    Kind.LAYER_NORM: _layer_norm,
    Kind.SOFTMAX: _softmax,
    Kind.REDUCE_SUM: _reduce_sum,
    Kind.SLICE: _slice,
}
