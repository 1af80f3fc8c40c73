"""Results in notebooks: all lines of str(), with names as text."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from matplotlib.collections import PolyCollection
from refusals import refused

from remat import GraphBuilder, Problem, Result, solve

NAME = "<script>alert(1)</script>\"'&amp;$x$"


class ParsedPage(HTMLParser):
    """Elements, attributes that could load or run something, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.sources: list[str] = []
        self.attributes: set[str] = set()
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.sources += [value or "" for name, value in attrs if name == "src"]

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def answer(budget: int) -> Result:
    builder = GraphBuilder(NAME)
    builder.op(NAME, size=4, cost=1)
    builder.op("b", inputs=[NAME], size=4, cost=1)
    builder.op("c", inputs=["b"], size=1, cost=1)
    builder.op("d", inputs=["c", NAME], size=1, cost=1)
    result = solve(Problem(builder.build(), budget, keep=["b"]), "greedy")
    return replace(result, message=f"{result.message}{NAME}\x1b[2J\ud800")  # as a plug-in's message


@pytest.mark.parametrize("budget", [10, 3])
def test_page_has_all_lines_and_escapes_names(budget: int) -> None:
    result = answer(budget)
    page = result._repr_html_()
    page.encode("utf-8")
    seen = ParsedPage(page)
    assert seen.tags == {"div", "table", "tr", "th", "td"} | ({"img"} if result.schedule else set())
    assert seen.attributes <= {"style", "src", "alt"}
    assert "\x1b" not in page
    lines = str(result).replace("\x1b", "\\x1b").replace("\ud800", "\\ud800").split("\n")
    assert [word.split() for word in lines] == [
        f"{word} {text}".split() for word, text in zip(seen.cells[::2], seen.cells[1::2], strict=True)
    ]
    assert "<script>alert(1)" in "".join(seen.cells)
    for source in seen.sources:
        kind, data = source.split(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")


def test_picture_shows_the_schedule() -> None:
    result = answer(10)
    memory, intervals = result.plot().axes
    shown = [text.get_text() for text in memory.get_legend().get_texts()]
    assert "budget 10 bytes" in shown
    assert any(re.match(rf"peak {result.peak} bytes", word) for word in shown)
    ends = [box.vertices[:, 0].max() for bars in intervals.collections if isinstance(bars, PolyCollection)
            for box in bars.get_paths()]  # fmt: skip
    assert sum(end == memory.get_xlim()[1] for end in ends) == 4  # d, its inputs, and b, which is kept
    with refused("problem.no-schedule"):
        answer(3).plot()
