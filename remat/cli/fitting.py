"""Lines and facts of ``remat deploy --memory``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat.deploy import Fit

#: Most tensors and ops to name.
SHOWN = 8


def fit_lines(found: Fit) -> list[tuple[str, str]]:
    """Return the verdict, what stands at the peak, and what partial execution would bring."""
    own = "" if not found.runtime_data else f" ({found.runtime_data:,} of them for the runtime's own structures)"
    apart = abs(found.memory - found.needed)
    word = f"yes, {apart:,} bytes to spare" if found.fits else f"no, {apart:,} bytes too large"
    verdict = f"{word}: {found.needed:,} bytes needed{own}, {found.memory:,} available"
    rows = [("fits", verdict)]
    if found.runtime_data is None:
        rows.append(("", "the runtime's own structures are not counted"))
    if not found.fits:
        rows.append(("least", f"{found.least:,} bytes for any order and addresses"))
    rows.append(("peak", f"{found.op} holds"))
    held = [(f"{size:,}", name) for name, size in found.held]
    held += [(f"{found.scratch:,}", "(scratch)")] if found.scratch else []
    held += [(f"-{found.in_place:,}", "(outputs in place of inputs)")] if found.in_place else []
    digits = max((len(size) for size, _ in held), default=0)
    rows += [("", f"{size:>{digits}}  {name}") for size, name in held[:SHOWN]]
    rows += [("", f"and {len(held) - SHOWN} more")] if len(held) > SHOWN else []
    return rows if found.fits else rows + _parts_lines(found) + _rows_lines(found)


def _parts_lines(found: Fit) -> list[tuple[str, str]]:
    parts = found.parts
    if parts is None:
        return [("parts", "computing layers in parts of their channels lowers no peak (estimate)")]
    saved = 100 * (1 - parts.after / parts.before)
    rows = [("parts", f"{parts.before:,} -> {parts.after:,} bytes ({saved:.4g} % less): estimate for kernels that "
             "compute channels in parts and add to their output")]  # fmt: skip
    shown = [f"{op}: {count} parts of its channels" for op, count in parts.layers] + list(parts.rewrites)
    rows += [("", line) for line in shown[:SHOWN]]
    return rows + ([("", f"and {len(shown) - SHOWN} more")] if len(shown) > SHOWN else [])


def _rows_lines(found: Fit) -> list[tuple[str, str]]:
    rows = found.rows
    if rows is None:
        return [("rows", "computing layers in bands of their rows lowers no peak (estimate)")]
    saved, more = 100 * (1 - rows.after / rows.before), 100 * rows.more_cost / max(rows.cost, 1)
    lines = [("rows", f"{rows.before:,} -> {rows.after:,} bytes ({saved:.4g} % less), {more:.4g} % more computation: "
              "estimate for kernels that compute images in bands of rows")]  # fmt: skip
    lines += [("", f"{first} to {last}: {bands} bands") for first, last, bands in rows.regions[:SHOWN]]
    return lines + ([("", f"and {len(rows.regions) - SHOWN} more")] if len(rows.regions) > SHOWN else [])


def fit_facts(found: Fit) -> dict[str, Any]:
    """Return the facts for JSON."""
    return asdict(found) | {"fits": found.fits, "held": dict(found.held)}
