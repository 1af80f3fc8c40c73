"""Blocks of a model: the modules that it repeats, or that a user names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from remat.errors import CaptureError

#: Name of a class, pattern of module paths, class of modules, or several of them.
BlocksLike = str | type[nn.Module] | Sequence[str | type[nn.Module]]
#: Modules without a forward pass of their own.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def find_blocks(model: nn.Module, wanted: BlocksLike | None = None) -> dict[str, nn.Module]:
    """Return the blocks of a model by path, in order; none contains another.

    By default, blocks are the outermost modules with submodules of which the model has two or more of equal structure:
    classes, and names, shapes and types of parameters and buffers. All other modules of their classes are blocks, too.

    `wanted`: names of classes (``"LlamaDecoderLayer"``), patterns of paths (``"model.layers.*"``), or classes.

    Raise CaptureError if the model repeats nothing, or has no module that `wanted` names.

    Examples
    --------
    >>> layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)]
    >>> list(find_blocks(nn.Sequential(nn.Embedding(10, 8), *layers, nn.Linear(8, 10))))
    ['1', '2', '3']
    """
    if wanted is None:
        return _repeated(model)
    words = [wanted] if isinstance(wanted, str | type) else list(wanted)
    found = dict(_outermost(model, lambda path, part: any(_named(word, path, part) for word in words)))
    for word in words:
        if not any(_named(word, path, part) for path, part in found.items()):
            kinds = Counter(type(part).__name__ for _, part in _candidates(model))
            often = [name for name, count in kinds.most_common(5) if count > 1]
            raise CaptureError(
                f"model {type(model).__name__!r} has no block {getattr(word, '__name__', word)!r}; "
                + (f"classes that it has several times: {', '.join(often)}" if often else "no class occurs twice"),
                "no-block",
            )
    return found


def _repeated(model: nn.Module) -> dict[str, nn.Module]:
    found = _repeated_of(model, list(_candidates(model))) or _repeated_of(
        model, list(_candidates(model, trained=False))
    )
    if not found:
        raise CaptureError(
            f"model {type(model).__name__!r} has no repeated block: name its blocks, blocks='ClassName', "
            "or use rematerialize, which captures the whole model",
            "no-repetition",
        )
    return found


def _repeated_of(model: nn.Module, candidates: Sequence[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    structures = {id(part): structure(part) for _, part in candidates}
    counts = Counter(structures.values())

    def again(part: nn.Module) -> bool:
        return id(part) in structures and counts[structures[id(part)]] > 1

    first = dict(_outermost(model, lambda _, part: again(part)))
    kinds = {type(part) for part in first.values()} - {nn.Sequential}
    return dict(_outermost(model, lambda _, part: again(part) or type(part) in kinds))


def structure(module: nn.Module) -> tuple[Any, ...]:
    """Return the classes in a module, and the names, shapes and types of its parameters and buffers."""
    return (
        tuple((name, type(part)) for name, part in module.named_modules()),
        *(
            tuple((name, tuple(each.shape), each.dtype, each.requires_grad) for name, each in tensors)
            for tensors in (module.named_parameters(), module.named_buffers())
        ),
    )


def _candidates(model: nn.Module, *, trained: bool = True) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules below `model` that can be called, have submodules and have parameters, here to train."""
    for path, part in model.named_modules():
        callable_part = part is not model and not isinstance(part, _CONTAINERS) and any(True for _ in part.children())
        if callable_part and any(each.requires_grad or not trained for each in part.parameters()):
            yield path, part


def _outermost(model: nn.Module, wanted: Callable[[str, nn.Module], bool]) -> Iterator[tuple[str, nn.Module]]:
    inside: tuple[str, ...] = ()
    for path, part in model.named_modules():
        if path and not path.startswith(inside) and not isinstance(part, _CONTAINERS) and wanted(path, part):
            inside = (*inside, path + ".")
            yield path, part


def _named(word: str | type[nn.Module], path: str, part: nn.Module) -> bool:
    if isinstance(word, type):
        return isinstance(part, word)
    return type(part).__name__ == word or fnmatchcase(path, word)
