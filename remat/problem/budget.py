"""Budgets as users write them."""

from __future__ import annotations

import re
from fractions import Fraction

from remat.errors import ProblemError
from remat.runtime.sizes import UNITS
from remat.runtime.text import short

_DIGITS = r"[0-9]+|[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?:_[0-9]{3})+)"
_BUDGET = re.compile(rf"\s*((?:{_DIGITS})(?:\.[0-9]+)?|\.[0-9]+)\s*(%|[A-Za-z]*)\s*", re.ASCII)


def parse_budget(text: str | int | float, reference_peak: int) -> int:
    """Parse a budget; return bytes, rounded down.

    Parameters
    ----------
    text : str, int or float
        Bytes (``123456``), bytes with a unit (``"10GiB"``, ``"2.5 GB"``, ``"8G"``: 8 GiB), a share of
        `reference_peak` (``"80%"``), or a float in (0, 1] as a share. Shares are computed exactly from their decimal
        digits. Commas or underscores may stand between groups of three digits (``"1,500 MB"``).
    reference_peak : int
        Bytes that 100 % stands for.

    Raises
    ------
    ProblemError
        If it cannot be read as a budget.

    Examples
    --------
    >>> parse_budget("90%", 46_319), parse_budget("1.5KiB", 0), parse_budget(0.5, 7)
    (41687, 1536, 3)
    """
    shown = short(text)
    if isinstance(text, bool):
        raise ProblemError(f"budget {shown} is not a number of bytes")
    if isinstance(text, int):
        if text < 0:
            raise ProblemError(f"budget {shown} is negative")
        return text
    if isinstance(text, float):
        if not 0 < text <= 1:
            raise ProblemError(f"budget {shown}: a fraction must lie in (0, 1]; write bytes as a whole number")
        return int(Fraction(repr(text)) * reference_peak)
    if not isinstance(text, str):
        raise ProblemError(f"a budget is a number of bytes, a text (10GiB, 80%) or a share (0.8), not {short(text)}")
    several = [part for part in text.split(",") if re.search("[A-Za-z%]", part) and _BUDGET.fullmatch(part)]
    if len(several) > 1 or ":" in text:
        raise ProblemError(f"budget {shown}: one budget is needed; `remat compare` and `remat frontier` take several")
    match = _BUDGET.fullmatch(text)
    if match is None and re.search(r"[0-9][_,]", text):
        raise ProblemError(
            f"budget {shown}: a comma or an underscore can stand between groups of three digits only (1,500 MB); "
            f"decimals follow a point (90.5%)"
        )
    if match is None or len(text) > 60:
        hint = _similar(text)
        raise ProblemError(
            f"budget {shown} is not bytes (123456), bytes with a unit (10GiB) or a share (80%)"
            + (f"; did you mean {hint}?" if hint else "")
        )
    number, unit = Fraction(re.sub("[_,]", "", match[1])), match[2].lower()
    if unit == "%":
        return int(number * reference_peak / 100)
    if unit not in UNITS:
        raise ProblemError(
            f"unit {match[2]!r} of budget {shown} is not one of B, KB, KiB, MB, MiB, GB, GiB, TB, TiB, %"
            + (f"; did you mean {hint}?" if (hint := _similar(text)) else "")
        )
    if UNITS[unit] == 1 and number.denominator != 1:
        raise ProblemError(f"budget {shown} is not a whole number of bytes; write a share with a percent sign (80%)")
    return int(number * UNITS[unit])


def _similar(text: str) -> str:
    """Return the budget that was probably meant, or "".

    Examples
    --------
    >>> _similar("80%%"), _similar("80 percent"), _similar("-5"), _similar("1e9"), _similar("8 gibs"), _similar("much")
    ('80%', '80%', '', '1000000000', '8GiB', '')
    """
    word = re.sub(r"\s*(%+|per ?cents?|pct|p\.?c\.?)\s*$", "%", text[:60].strip().lower())
    word = re.sub(r"\s*([kmgtp])(i?)(bytes?|o|bs)?$", lambda unit: f"{unit[1].upper()}{unit[2]}B", word)
    if power := re.fullmatch(r"([0-9.]+)e\+?([0-9]{1,2})(b)?", word):
        word = f"{Fraction(power[1]) * 10 ** int(power[2])}" if power[1].count(".") < 2 else ""
    return word if word != text and _BUDGET.fullmatch(word) and re.sub("[^A-Za-z]", "", word).lower() in UNITS else ""
