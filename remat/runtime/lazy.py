"""Packages that import their public names on first use, so that importing the package stays light."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast


class LazyPackage(ModuleType):
    """Package whose public names are imported on first use.

    A function keeps its name when a submodule of that name is imported (``remat.torch.capture``).
    """

    __all__: list[str]
    _homes: dict[str, str]
    _check: Callable[[], object]

    def __getattr__(self, name: str) -> Any:
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self._check()
        value = getattr(import_module(self._homes[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in self._homes and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.__all__})


def import_lazily(package: str, check: Callable[[], object] = lambda: None) -> None:
    """Make a package import the names of its stub ``__init__.pyi`` on first use.

    Type checkers read the same stub (SPEC 1 of Scientific Python), so the names are listed once.

    `package`: ``__name__`` of the package. `check`: called before each import; raises if the package is unusable.
    """
    module = cast("LazyPackage", sys.modules[package])
    assert module.__file__ is not None
    stub = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    module._homes = {name.name: str(node.module) for node in imports for name in node.names}
    module._check = check
    module.__all__ = sorted(module._homes)
    module.__class__ = LazyPackage
