"""Small graphs with known peaks and optima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from remat.graphs import ComputeGraph, single_output_graph


def from_lists(
    name: str,
    inputs: Sequence[Sequence[int]],
    sizes: Sequence[int] | None = None,
    costs: Sequence[int] | None = None,
    kept: Sequence[int] = (),
) -> ComputeGraph:
    """Return a graph of ops 0..n-1 with one output each; `inputs` lists the ops that each reads."""
    n = len(inputs)
    nodes = {str(v): ((sizes or [1] * n)[v], (costs or [1] * n)[v]) for v in range(n)}
    edges = [(str(u), str(v)) for v, before in enumerate(inputs) for u in before]
    return single_output_graph(name, nodes, edges, order=list(nodes)).with_outputs(str(v) for v in kept)


@dataclass(frozen=True)
class Known:
    """Graph with optima found by exhaustive search; no tensor is kept.

    ``optima[budget]`` holds the least cost with a free order, with a free order and at most two computes per op, and
    with the order fixed stage by stage (None: infeasible), then the retention-interval bound.
    """

    graph: ComputeGraph
    structural_bound: int
    reference_peak: int
    least_peak: int
    optima: dict[int, tuple[int | None, int | None, int | None, int]] = field(default_factory=dict)


KNOWN = [
    Known(
        from_lists(
            "known-1", [[], [0], [0, 1], [0], [0, 2], [3], [0, 4, 5]], [2, 2, 9, 7, 2, 7, 3], [3, 7, 8, 3, 8, 7, 9]
        ),
        14, 20, 18,
        {15: (None, None, None, 67), 16: (48, 48, 59, 59), 18: (45, 45, 48, 48), 20: (45, 45, 45, 45)},
    ),
    Known(
        from_lists(
            "known-2",
            [[], [0], [0, 1], [1], [0, 3], [1, 2], [3], [4, 5, 6]],
            [9, 3, 7, 8, 7, 8, 4, 8],
            [8, 5, 3, 6, 5, 1, 6, 3],
        ),
        27, 34, 31,
        {
            27: (43, 43, 46, 45), 30: (42, 42, 46, 45), 31: (37, 37, 46, 45), 33: (37, 37, 46, 40),
            34: (37, 37, 37, 37),
        },
    ),
    Known(
        from_lists(
            "known-3",
            [[], [0], [0], [0, 1], [1, 3], [1, 2, 3], [2, 3, 5], [2, 4, 6]],
            [5, 7, 2, 2, 4, 5, 2, 7],
            [4, 6, 9, 6, 8, 9, 6, 5],
        ),
        16, 20, 18,
        {
            16: (76, None, 84, 61), 17: (76, None, 84, 61), 18: (53, 53, 61, 61), 20: (53, 53, 53, 53),
        },
    ),
    Known(
        from_lists(
            "known-4", [[], [0], [0], [2], [0, 3], [0, 4], [1, 5]], [5, 7, 7, 8, 5, 1, 2], [8, 4, 7, 8, 8, 1, 4]
        ),
        18, 27, 20,
        {18: (48, 48, 52, 52), 20: (40, 40, 44, 44), 26: (40, 40, 44, 44), 27: (40, 40, 40, 40)},
    ),
    Known(
        from_lists(
            "known-5", [[], [0], [1], [0, 1, 2], [0, 2], [1, 3], [4, 5]], [6, 1, 5, 9, 8, 3, 1], [2, 2, 6, 9, 5, 7, 1]
        ),
        21, 29, 24,
        {
            21: (None, None, None, 41), 22: (34, 34, 48, 41), 24: (32, 32, 46, 41), 28: (32, 32, 34, 34),
            29: (32, 32, 32, 32),
        },
    ),
]  # fmt: skip

#: Smallest unit graph where recomputation beats every order: least peak of orders 4; budget 3 is feasible at cost 6.
SMALLEST_GAIN = from_lists("smallest-gain", [[], [0], [0, 1], [0, 2], [1, 3]])

#: In-tree where the fixed order costs more: fixed stages 6 from budget 7 (5 only from 11), free order 5 from 7.
FIXED_ORDER_TREE = from_lists("fixed-order-tree", [[], [], [1], [2], [0, 3]], [5, 3, 3, 1, 1])

#: Seven operators of a microcontroller network and its input (Liberis and Lane 2019): peak 5216, least peak 4960.
LIBERIS_LANE = from_lists(
    "liberis-lane",
    [[], [0], [1], [2], [1], [3], [4], [5, 6]],
    [1568, 3136, 1568, 512, 512, 256, 256, 512],
    [0] * 8,
    kept=[7],
)

#: Files of the shared data with the least peak over orders without recomputation, in bytes.
PUBLISHED_PEAKS = [
    ("swiftnet_hpd_cell_a", 200_704), ("swiftnet_hpd_cell_a_rewritten", 188_160),
    ("swiftnet_hpd_cell_b", 81_536), ("swiftnet_hpd_cell_b_rewritten", 56_448),
    ("swiftnet_hpd_cell_c", 32_536), ("swiftnet_hpd_cell_c_rewritten", 17_052),
    ("darts_v2_imagenet_cell0_coarse", 903_168), ("darts_v2_imagenet_cell0_coarse_rewritten", 752_640),
    ("liberis_lane_fig1_example", 4_960),
]  # fmt: skip

#: The same for random layered graphs; those of 250 and 500 ops are unpublished.
LAYERED_PEAKS = [("rl_g1", 36_790), ("rl_g2", 105_170), ("rl_g3", 247_960)]
