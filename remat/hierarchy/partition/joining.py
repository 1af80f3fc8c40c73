"""Joining of neighbouring members of a group, if they are too many."""

from __future__ import annotations

import numpy as np

from remat.hierarchy.groups import Group
from remat.hierarchy.partition.rounds import Level
from remat.problem import Problem
from remat.runtime.arrays import Int


def joined(problem: Problem, members: list[Group | int]) -> Group:
    """Return a group of ops and groups, named by its first and last op."""
    position, names = problem.graph.arrays.position, problem.graph.op_names
    ops = np.concatenate([m.forward if isinstance(m, Group) else np.array([m], dtype=np.int64) for m in members])
    ops = ops[np.argsort(position[ops])]
    children = tuple(member for member in members if isinstance(member, Group))
    return Group(f"{names[ops[0]]} .. {names[ops[-1]]}", ops, children=children)


def nodes_of(problem: Problem, members: list[Group | int]) -> Int:
    """Return the number of the member of each op, -1 for ops in none; shape (ops,)."""
    node = np.full(len(problem.graph.ops), -1, dtype=np.int64)
    for number, member in enumerate(members):
        node[member.forward if isinstance(member, Group) else member] = number
    return node


def in_order(problem: Problem, members: list[Group | int]) -> list[Group | int]:
    """Sort members by the position of their first ops in the reference order."""
    position = problem.graph.arrays.position
    return sorted(members, key=lambda member: position[member.forward[0] if isinstance(member, Group) else member])


def in_runs(problem: Problem, members: list[Group | int], limit: int) -> list[Group | int]:
    """Join neighbours in a topological order to groups, and these again, until at most `limit` members are left."""
    if len(members) <= limit:
        return members
    order = Level.of(problem, nodes_of(problem, members), None, problem.kept).by_rank
    members = [members[number] for number in order]
    while len(members) > limit:
        runs = np.array_split(np.arange(len(members)), -(-len(members) // limit))
        members = [
            joined(problem, [members[k] for k in run.tolist()]) if len(run) > 1 else members[run[0]] for run in runs
        ]
    return members


def groups_of(members: list[Group | int]) -> list[Group]:
    """Return the groups among members."""
    return [member for member in members if isinstance(member, Group)]
