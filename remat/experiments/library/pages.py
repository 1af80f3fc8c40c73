"""Pages of the library in Markdown: the overview, and one page for each instance with its picture and records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from remat.experiments.library.instances import FAMILIES, Instance, instances
from remat.experiments.library.ledger import Class, Ledger, Standing, addresses_of
from remat.experiments.library.published import published
from remat.experiments.library.records import AddressRecord, BoundRecord, Record
from remat.runtime.sizes import size_text
from remat.schedule.address_plots import figure_of_addresses

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Largest number of ops of an instance whose addresses are drawn: pictures of more are crowded, and take a second each.
MOST_DRAWN = 100
#: Family whose values are visible at once.
UNFOLDED = "checkmate"


class Overview:
    """Tables of the overview, each as a text.

    Parameters
    ----------
    ledgers : sequence of Ledger, optional
        Default: all of the library.
    """

    def __init__(self, ledgers: Sequence[Ledger] | None = None) -> None:
        self._ledgers = [Ledger(each) for each in instances().values()] if ledgers is None else list(ledgers)
        self._known = {ledger.instance.name: list(ledger.standings()) for ledger in self._ledgers}

    def classes(self) -> str:
        """Return the problems by family and class, with a sentence on all of them."""
        everything = [standing for standings in self._known.values() for standing in standings]
        closed = sum(each.closed for each in everything)
        lines = [
            f"**{len(everything):,} problems on {len(self._ledgers)} instances**: {closed:,} closed, "
            f"{len(everything) - closed:,} open. Geometric mean of the gaps: {_mean_gap(everything)} over all "
            f"problems that have a schedule, {_mean_gap(each for each in everything if not each.closed)} over the "
            "open ones.",
            "",
            *_by_class(self._known, self._ledgers),
        ]
        return "\n".join(lines)

    def values(self) -> str:
        """Return the best known values of the instances of each family, folded except :data:`UNFOLDED`."""
        lines: list[str] = []
        for family, title in FAMILIES.items():
            chosen = [ledger.instance for ledger in self._ledgers if ledger.instance.family == family]
            if chosen:
                rows = _values(chosen, self._known)
                lines += [f'???{"+" if family == UNFOLDED else ""} info "{title}: {len(chosen)}"', ""]
                lines += [f"    {row}" for row in table(rows[0], rows[1:])] + [""]
        return "\n".join(lines)

    def progress(self) -> str:
        """Return the records that arrived on each date."""
        return "\n".join(_progress(self._ledgers))


def page(ledger: Ledger, picture: str = "") -> str:
    """Return the page of an instance; `picture` is the address of its picture."""
    instance, standings = ledger.instance, list(ledger.standings())
    made = f"`remat library export {instance.name} -o {instance.name}.json`"
    if instance.floor:
        made = f"`remat library export {instance.name} -o {instance.name}.csv` writes the buffers"
    if instance.file:
        made = f"the file `{instance.file}`, which you fetch yourself"
    facts = [
        ("Version", f"{instance.version}"), ("Graph", made), ("Origin", instance.origin or "this project"),
        ("Generator", instance.command and f"`{instance.command}`"), ("Ops", f"{instance.ops:,}"),
        ("Cost of each op once", f"{instance.cost:,}"), ("Reference peak", f"{instance.peak:,} bytes"),
        ("Structural bound", f"{instance.least:,} bytes"), ("Digest", f"`{instance.digest}`"),
        ("Order", (f"`{instance.computes}`" if instance.computes else "reference order") if instance.floor else ""),
        ("Fullest step", f"{instance.floor:,} bytes" if instance.floor else ""),
    ]  # fmt: skip
    lines = [f"# {instance.name}", "", *table(facts[0], [fact for fact in facts[1:] if fact[1]]), ""]
    if picture:
        lines += [f"![Best known results of {instance.name}]({picture})", ""]
    lines += ["## Problems", "", *table(_PROBLEM_HEAD, map(_problem_line, standings)), ""]
    lines += [f"Values are {_UNITS.get(standings[0].problem.kind, 'overheads in %')}; **bold**: proved optimal.", ""]
    lines += ["## Records", "", *table(_RECORD_HEAD, [_record_line(instance, each) for each in ledger.records])]
    again = f"`remat library check {instance.name} --rerun`"
    lines += ["", f"{again} computes each best bound again, by the method, problem, limit and seed of its record."]
    return "\n".join([*lines, ""])


def picture(ledger: Ledger) -> Figure | None:
    """Draw best values and bounds against the budget, or the best addresses; None for other instances."""
    from matplotlib.figure import Figure

    known = next(ledger.standings()).best
    if isinstance(known, AddressRecord) and ledger.instance.ops <= MOST_DRAWN:
        return figure_of_addresses(addresses_of(ledger.arena, known, ledger.instance.name))
    standings = [each for each in ledger.standings() if each.problem.percent is not None and not each.infeasible]
    if len(standings) < 2:
        return None
    figure = Figure(figsize=(7, 3.2))
    axes = figure.add_axes((0.11, 0.17, 0.86, 0.8))  # fixed: a computed layout draws twice, and there are 100 pictures
    for kind, colour in (("fixed", "tab:blue"), ("free", "tab:orange")):
        mine = [each for each in standings if each.problem.kind == kind]
        budgets = [each.problem.percent or 0 for each in mine]
        best = [_or_nan(each.relative(each.value)) for each in mine]
        bound = [_or_nan(each.relative(each.bound.value)) for each in mine]
        axes.plot(budgets, best, "o-", color=colour, label=f"{kind} order, best known")
        axes.plot(budgets, bound, "^--", color=colour, alpha=0.5, label=f"{kind} order, bound")
    axes.set(xlabel="budget in % of the reference peak", ylabel="overhead in %")
    axes.legend(frameon=False, fontsize="small")
    return figure


_UNITS = {"order": "peaks in % of the reference peak", "arena": "arenas in % of the bytes live at the fullest step"}
_PROBLEM_HEAD = ("problem", "budget", "class", "best", "bound", "gap %", "found by", "bound by", "published")
_RECORD_HEAD = ("date", "record", "value", "holds for", "by", "s", "machine")


def _problem_line(standing: Standing) -> tuple[str, ...]:
    problem = standing.problem
    told = published(problem.instance.name, problem.kind, problem.percent) if problem.percent is not None else []
    gap = "" if standing.gap is None else f"{100 * standing.gap:.3g}"
    return (
        problem.label, "" if problem.budget is None else f"{problem.budget:,}", str(standing.group),
        _best(standing), _number(standing.relative(standing.bound.value)), gap,
        "" if standing.best is None or standing.infeasible else standing.best.origin.method, standing.bound.source,
        ", ".join(map(str, told)),
    )  # fmt: skip


def _record_line(instance: Instance, record: Record) -> tuple[str, ...]:
    origin = record.origin
    if isinstance(record, BoundRecord):
        value = "infeasible" if record.value is None else f"{record.measure} ≥ {record.value:,}"
        scope = "" if record.measure == "arena" else f"{record.order} order"
        scope += "" if record.budget is None else f", ≤ {record.budget:,} bytes"
        scope += ", no recomputation" if record.max_computes == 1 else ""
        by = f"{origin.method} on {record.problem}: {record.source}"
        by += "" if origin.limit is None else f", limit {origin.limit:g} s"
        by += "" if origin.seed is None else f", seed {origin.seed}"
    elif isinstance(record, AddressRecord):
        value, scope, by = f"arena {record.arena:,}", "", origin.method
    else:
        value, scope, by = f"cost {record.cost:,}", f"{record.order} order, peak {record.peak:,}", origin.method
    clock = " (wall)" if origin.clock == "wall" else ""
    seconds = "" if origin.seconds is None else f"{origin.seconds:g}{clock}"
    return origin.date, record.kind, value, scope, by, seconds, origin.machine


def _by_class(known: dict[str, list[Standing]], ledgers: Sequence[Ledger]) -> list[str]:
    total = Counter(each.group for standings in known.values() for each in standings)
    groups = [group for group in Class if total[group]]
    rows = []
    for family, title in FAMILIES.items():
        mine = [each for ledger in ledgers if ledger.instance.family == family for each in known[ledger.instance.name]]
        counts = Counter(each.group for each in mine)
        rows.append((title, *(f"{counts[group]}" for group in groups), _mean_gap(mine)))
    rows.append(("**All**", *(f"**{total[group]}**" for group in groups), ""))
    return table(("family", *map(str, groups), "mean gap"), rows)


def _progress(ledgers: Sequence[Ledger]) -> list[str]:
    """Return, for each date, the records that arrived, and how many problems are closed at its end."""
    dates = sorted({record.origin.date for ledger in ledgers for record in ledger.records})
    rows = []
    for date in dates:
        before = [ledger.until(date) for ledger in ledgers]
        arrived = Counter(record.kind for ledger in ledgers for record in ledger.records if record.origin.date == date)
        standings = [each for ledger in before for each in ledger.standings()]
        rows.append((date or "unknown", f"{arrived['schedule'] + arrived['addresses']}", f"{arrived['bound']}",
                     f"{sum(each.closed for each in standings)}", _mean_gap(standings)))  # fmt: skip
    return table(("date", "new schedules or addresses", "new bounds", "closed problems", "mean gap"), rows)


def _values(chosen: Sequence[Instance], known: dict[str, list[Standing]]) -> list[tuple[str, ...]]:
    """Return head and rows of instances with their best known values: in the reference order at each budget, or peaks.

    Proved optima are bold; ``-`` stands for no such problem, ``?`` for no known schedule.
    """
    shown = {
        each.name: {one.problem.percent: one for one in known[each.name] if one.problem.kind != "free"}
        for each in chosen
    }
    budgets = sorted({one for each in shown.values() for one in each}, key=lambda each: -(each or 0))
    least = "least arena" if chosen[0].floor else "least peak"
    heads = (least if budget is None else f"{budget} %" for budget in budgets)
    rows: list[tuple[str, ...]] = [("instance", "ops", "peak", *heads, "closed", "mean gap")]
    for each in chosen:
        standings, mine = known[each.name], shown[each.name]
        values = (_best(mine[budget], "{:.2f}") if budget in mine else "-" for budget in budgets)
        closed = sum(one.closed for one in standings)
        rows.append((
            f"[{each.name}]({each.name}.md)", f"{each.ops:,}", _unbroken(size_text(each.peak)), *values,
            _unbroken(f"{closed} of {len(standings)}"), _mean_gap(standings),
        ))  # fmt: skip
    return rows


def _best(standing: Standing, form: str = "{:.4f}") -> str:
    """Return the best known value of a problem, bold if it is proved optimal."""
    if standing.infeasible:
        return "infeasible"
    value = standing.relative(standing.value)
    best = "?" if value is None else form.format(value)
    return f"**{best}**" if standing.closed else best


def _unbroken(text: str) -> str:
    """Return a text that is not wrapped."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _mean_gap(standings: Iterable[Standing]) -> str:
    """Return the geometric mean of the gaps, shifted by one, in %."""
    gaps = [each.gap for each in standings if each.gap is not None]
    if not gaps:
        return ""
    return f"{100 * (math.exp(sum(map(math.log1p, gaps)) / len(gaps)) - 1):.2g} %"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
