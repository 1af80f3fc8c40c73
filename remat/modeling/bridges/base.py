"""The kinds by which backends and bridges know records."""

from __future__ import annotations

from remat.modeling.records import ALWAYS, Linear, Record


class PlainLinear(Linear):
    """The kind of linear records without enforcement literals; never made, only named by backends and bridges.

    A backend that names :class:`Linear` takes rows with and without literals, one that names this kind only those
    without.
    """


def kind_of(record: Record) -> type[Record]:
    """The kind by which backends and bridges know `record`: its class, or :class:`PlainLinear`."""
    if isinstance(record, Linear) and (record.enforce is None or bool((record.enforce == ALWAYS).all())):
        return PlainLinear
    return type(record)


class InapplicableError(Exception):
    """Raised for a record that a bridge cannot rewrite; the text says what the bridge applies to."""
