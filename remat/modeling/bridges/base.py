"""Kinds of records as backends and bridges distinguish them."""

from __future__ import annotations

from remat.modeling.records import ALWAYS, Linear, Record


class PlainLinear(Linear):
    """Kind of linear records without enforcement literals; never instantiated.

    A backend with :class:`Linear` as a native kind accepts rows with and without literals; a backend with this kind
    accepts only those without.
    """


def kind_of(record: Record) -> type[Record]:
    """Return the kind of `record` for backends and bridges: its class, or :class:`PlainLinear`."""
    if isinstance(record, Linear) and (record.enforce is None or bool((record.enforce == ALWAYS).all())):
        return PlainLinear
    return type(record)


class InapplicableError(Exception):
    """Raised for a record that a bridge cannot rewrite; the text completes "applies only to"."""
