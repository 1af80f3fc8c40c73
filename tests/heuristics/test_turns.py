"""Turns: shares, adaptation to gains, minimum shares."""

from collections.abc import Callable

from remat.heuristics.turns import Turns


def spent(turns: Turns, gain: Callable[[str], float], rounds: int, length: float = 1.0) -> dict[str, int]:
    count = dict.fromkeys(turns.arms, 0)
    for _ in range(rounds):
        name = turns.next()
        count[name] += 1
        turns.add(name, length, gain(name))
    return count


def test_shares_hold_for_equal_gains() -> None:
    for gain in (0.0, 5.0):
        count = spent(Turns({"a": 0.6, "b": 0.2, "c": 0.2}), lambda _, gain=gain: gain, 100)
        assert abs(count["a"] - 60) <= 2
        assert abs(count["b"] - count["c"]) <= 1


def test_larger_gains_get_more_turns_and_every_arm_some() -> None:
    count = spent(Turns({"a": 0.6, "b": 0.2}), lambda name: float(name == "b"), 140)
    assert count["b"] > count["a"], "only b gains, though its share is a third of a's"
    assert count["a"] >= 40
    turns = Turns({"a": 1.0, "b": 1.0})
    spent(turns, lambda name: float(name == "a"), 40)
    later = spent(turns, lambda name: float(name == "b"), 60)
    assert later["b"] > later["a"], "old gains no longer count"


def test_long_turns_are_rare() -> None:
    turns = Turns({"quick": 1.0, "slow": 1.0})
    names = []
    for _ in range(22):
        names.append(turns.next())
        turns.add(names[-1], 10.0 if names[-1] == "slow" else 1.0, 0.0)
    assert names.count("slow") == 2
    assert turns.next({"slow"}) == "slow"
    assert turns.arms["slow"].idle == 2
