"""Exported PyTorch programs (``.pt2``), and the ExecuTorch programs (``.pte``) made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from remat.errors import FormatError
from remat.graphs import ComputeGraph

#: Begin of a zip archive, which a ``.pt2`` file is.
MAGIC = b"PK\x03\x04"


@dataclass(frozen=True, eq=False)
class ProgramFile:
    """Content of a ``.pt2`` file, or of the ``.pte`` file made of it."""

    data: bytes
    remarks: tuple[str, ...] = ()

    @cached_property
    def program(self) -> Any:
        """The ``torch.export.ExportedProgram``.

        Raises
        ------
        FormatError
            If torch cannot read it, or would unpickle or run something.
        """
        from remat.torch.executorch import read_program

        return read_program(self.data)

    @property
    def graph(self) -> ComputeGraph:
        """Graph of the program as exported; ExecuTorch lowers its ops to others."""
        from remat.torch.executorch import program_graph

        return program_graph(self.program)


def only_deployed(path: object) -> FormatError:
    """Return the error for an exported program where a model is written back."""
    return FormatError(
        f"{path}: an exported PyTorch program is not written back; remat deploy makes a .pte file of it", "program",
        str(path),
    )  # fmt: skip
