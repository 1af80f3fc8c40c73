"""What has options and compiled code: the base of heuristics, searches for orders and allocators."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar

from remat.compiled.sets import KernelSet, begin
from remat.deadline import Deadline
from remat.errors import ProblemError


class Algorithm(ABC):
    """Has a name, options of one dataclass, and compiled code that it needs.

    Parameters
    ----------
    options : optional
        Of the class's `options_type`; None: its defaults.

    Raises
    ------
    ProblemError
        For anything else.

    Examples
    --------
    >>> class Walk(Algorithm):
    ...     name = "walk"
    >>> Walk().prepared()
    True
    >>> Walk(3)
    Traceback (most recent call last):
    remat.errors.ProblemError: options of walk are a int, it takes none
    """

    name: ClassVar[str]
    options_type: ClassVar[type | None] = None
    """The dataclass of its options, the constructor's only argument; None where it has none."""
    kernels: ClassVar[tuple[KernelSet, ...]] = ()
    """The compiled code that it needs."""

    def __init__(self, options: Any = None) -> None:
        kind = self.options_type
        if options is not None and (kind is None or not isinstance(options, kind)):
            wanted = "takes none" if kind is None else f"takes {kind.__name__}"
            found = f"options of {self.name} are a {type(options).__name__}"
            raise ProblemError(f"{found}, it {wanted}", "options-class", self.name)
        self.options: Any = kind() if options is None and kind is not None else options

    def __repr__(self) -> str:  # the same in every process: resumed experiments compare it
        return f"{type(self).__qualname__}({'' if self.options is None else repr(self.options)})"

    @classmethod
    def compiled(cls) -> bool:
        """Whether the compiled code it needs is there, so that :meth:`prepared` does not take long."""
        return all(kernels.loaded or kernels.compiled() is not None for kernels in cls.kernels)

    def prepared(self, deadline: Deadline | None = None, on_wait: Callable[[], None] | None = None) -> bool:
        """Wait for the compiled code it needs, but not beyond the deadline; whether all of it is ready.

        The first time on a machine this takes some seconds; another process goes on with it after the deadline.

        Parameters
        ----------
        deadline : Deadline, optional
        on_wait : callable, optional
            Called once if there is something to wait for.
        """
        begin(*self.kernels)  # beside each other
        return all(kernels.ready(deadline, on_wait) for kernels in self.kernels)
