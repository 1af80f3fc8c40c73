"""What every bridge is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from remat.modeling.records import ALWAYS, Linear, Record

if TYPE_CHECKING:
    from remat.modeling.bridges.context import Workshop


R = TypeVar("R", bound=Record)


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


class Bridge(ABC, Generic[R]):
    """Rewrites one kind of record into simpler ones.

    A subclass's docstring has the headings *Reformulation*, *Source* and *Target*.

    Attributes
    ----------
    source : type of Record
        The kind that is rewritten. None of the records that come out leads back to it, and none is a
        :class:`~remat.modeling.Domain`: the values of the source's variables are settled before the first bridge.
    condition : str
        When it applies, in words, for messages.
    """

    source: ClassVar[type[Any]]
    condition: ClassVar[str] = "always"

    def applies(self, record: R, workshop: Workshop) -> bool:
        """Whether `record` can be rewritten over the variables of ``workshop.model``."""
        return True

    @abstractmethod
    def rewrite(self, record: R, workshop: Workshop) -> list[Record]:
        """Records that say the same, over the variables of ``workshop.model``, which may grow."""

    def __str__(self) -> str:
        return type(self).__name__
