"""External text in messages and on terminals."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.runtime.text import one_line, printable, short


@given(st.text() | st.text(alphabet="a\x1b\x07\x9b\u202e\ud800\r\n\t\u2028 "))
def test_output_is_printable(text: str) -> None:
    assert printable(text).isprintable()
    assert one_line(text).isprintable()
    assert printable(text, "\n").replace("\n", "").isprintable()
    assert printable(text, "\n").count("\n") == text.count("\n")
    assert short(text).isprintable() and len(short(text)) <= 60


def test_printable_text_is_unchanged() -> None:
    assert printable("größe 4 µs, 日本 \\x1b") == "größe 4 µs, 日本 \\x1b"


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), b"\xff" * 100, "x" * 10**6, [1], {}, None, 1.5, object()], ids=type
)
def test_short_text_of_any_value(value: object) -> None:
    assert len(short(value)) <= 60 and short(value).isprintable()
    assert sys.get_int_max_str_digits() == 4300
