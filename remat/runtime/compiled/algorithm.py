"""Base of heuristics, order searches and allocators: a name, options and kernels."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar

from remat.errors import ProblemError
from remat.runtime.compiled.sets import KernelSet, begin
from remat.runtime.deadline import Deadline


class Algorithm(ABC):
    """Base of algorithms with a dataclass of options and compiled kernels.

    Parameters
    ----------
    options : optional
        Object of the class's `options_type`; None: its defaults.

    Raises
    ------
    ProblemError
        For options of another type.

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
    """Dataclass of the options, the constructor's only argument; None: no options."""
    kernels: ClassVar[tuple[KernelSet, ...]] = ()
    """Kernels that must be compiled before it runs."""

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
        """Return True if the kernels are compiled, so that :meth:`prepared` returns quickly."""
        return all(kernels.loaded or kernels.compiled() is not None for kernels in cls.kernels)

    def prepared(self, deadline: Deadline | None = None, on_wait: Callable[[], None] | None = None) -> bool:
        """Wait until all kernels are ready, at most until the deadline; return whether they are.

        Compiling takes some seconds, once per machine; a background process finishes it after the deadline.

        Parameters
        ----------
        deadline : Deadline, optional
        on_wait : callable, optional
            Called once if it has to wait.
        """
        begin(*self.kernels)  # in parallel
        return all(kernels.ready(deadline, on_wait) for kernels in self.kernels)
