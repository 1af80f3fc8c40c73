"""Reader of ``.pt2`` files (``torch.export.save``) that never unpickles or runs anything from them.

``torch.export.load`` unpickles weights, constants and sample inputs, loads compiled libraries, and evaluates sizes as
Python. So the file is checked, and only checked parts of it are given to torch, in a new archive.
"""

from __future__ import annotations

import io
import json
import math
import operator
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from remat.errors import FormatError
from remat.runtime.text import short
from remat.torch.capture.explaining import quiet_torch
from remat.torch.private import HigherOrderOperator, OpOverload, PyTorchFileWriter

#: Records that are read; those of `_DROPPED` are left out, and others are refused.
_READ = re.compile(
    r"data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|models/model\.json|archive_format|archive_version|byteorder"
)
_DROPPED = re.compile(r"\.data/.*|extra/.*|data/sample_inputs/.*")
_MODEL = "models/model.json"
_SAMPLE = "data/sample_inputs/model.pt"
#: Sizes are evaluated: numbers, symbols, operators, and functions by the names that torch gives to sympy.
_WORD = re.compile(r"[A-Za-z_]\w*")
_EXPRESSION = re.compile(r"[\w\s+\-*/%(),<>=&|~]*")
_FUNCTIONS = {
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilDiv", "PowByNatural", "IntTrueDiv",
    "Max", "Min", "Eq", "Ne", "Le", "Lt", "Ge", "Gt", "Integer", "Add", "Mul", "Pow",
}  # fmt: skip
_SYMBOL = re.compile(r"Symbol\('z?[su]f?\d+'(?:, \w+=(?:True|False))*\)|\bz?[su]f?\d+\b")
#: Functions other than operators that a program may call.
_CALLS = {
    *(getattr(operator, name) for name in (
        "getitem", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "eq", "ne", "lt", "le", "gt", "ge",
        "and_", "or_", "xor", "not_",
    )),
    *(getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")),
    torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_float, torch.sym_int, torch.sym_ite,
}  # fmt: skip
_CONTROL_FLOW = {"cond", "while_loop", "map_impl", "scan", "wrap_with_set_grad_enabled", "wrap_with_autocast"}


def read_program(data: bytes) -> torch.export.ExportedProgram:
    """Return the program in the content of a ``.pt2`` file, without its sample inputs.

    Raises
    ------
    FormatError
        With the name of the record or operator, if reading it would unpickle or run something, or torch cannot read it.
    """
    records = _records(data)
    written = io.BytesIO()
    writer = PyTorchFileWriter(written)
    for name, content in {**records, _SAMPLE: b""}.items():
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    written.seek(0)
    try:
        with quiet_torch("torch.export"):
            program: torch.export.ExportedProgram = torch.export.load(written)
    except Exception as error:
        reason = short(f"{type(error).__name__}: {error}")
        raise FormatError(f"torch cannot read the program: {reason}") from None
    check_calls(program)
    return program


def _records(data: bytes) -> dict[str, bytes]:
    """Return the records to read, by name."""
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise FormatError("a record of the archive is compressed: torch.export.save writes none", "record")
            for entry in entries:
                name = entry.filename.partition("/")[2]
                if name in found:
                    raise FormatError(f"the archive has two records {short(name)}", "record", name)
                if _READ.fullmatch(name):
                    found[name] = archive.read(entry)
                elif not _DROPPED.fullmatch(name):
                    raise FormatError(
                        f"record {short(name)} may hold pickled objects or compiled code, which are never loaded; save "
                        "the program with torch.export.save, with plain tensors alone", "record", name,
                    )  # fmt: skip
    except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise FormatError(
            f"not a readable archive ({error}): save the program again with torch.export.save", "archive"
        ) from None
    if found.get("archive_format") != b"pt2" or _MODEL not in found:
        raise FormatError("not an archive of torch.export.save", "archive")
    for name in (each for each in found if each.endswith("_config.json")):
        for path, payload in _items(_json(found[name], name), "path_name", "use_pickle"):
            if payload is not False or not re.fullmatch(r"(weight|tensor)_\d+", str(path)):
                raise FormatError(f"{name}: {short(path)} is pickled, which is never loaded", "pickled", str(path))
    model = _json(found[_MODEL], _MODEL)
    for (text,) in _items(model, "expr_str"):
        rest = _SYMBOL.sub("0", str(text))
        if not _EXPRESSION.fullmatch(rest) or not _FUNCTIONS.issuperset(_WORD.findall(rest)):
            raise FormatError(f"{short(text)} is no plain size, and would be evaluated", "expression", str(text))
    if b"default_factory" in found[_MODEL] or b"defaultdict" in found[_MODEL]:
        raise FormatError("an input or output is a defaultdict, whose module would be imported")
    if isinstance(model, dict) and model.get("guards_code"):  # Python source, for runs in torch alone
        found[_MODEL] = json.dumps({**model, "guards_code": []}).encode()
    return found


def _json(content: bytes, name: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: {error}", "archive", name) from None


def _items(document: Any, *keys: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of keys for each object of a document that has the last one."""
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if keys[-1] in each:
                yield tuple(each.get(key) for key in keys)
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def check_calls(program: torch.export.ExportedProgram) -> None:
    """Refuse calls of anything but operators, since lowering runs a program on fake tensors.

    Raise FormatError with the name of the node.
    """
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            target = node.target
            is_operator = isinstance(target, OpOverload) and target._schema.name != "aten::from_file"
            is_body = isinstance(target, HigherOrderOperator) and target.name() in _CONTROL_FLOW
            called = node.op not in ("placeholder", "get_attr", "output")
            if called and not (is_operator or is_body or (node.op == "call_function" and target in _CALLS)):
                raise FormatError(f"node {node.name} calls {target}, which is no known operator", "call", node.name)
