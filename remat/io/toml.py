"""Reading of configuration files."""

from __future__ import annotations

import os
import tomllib
from typing import Any

from remat.errors import FormatError
from remat.io.files import read_text
from remat.io.limits import check_toml_keys

#: Largest configuration file, in bytes.
MAX_CONFIG_BYTES = 1024 * 1024


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises
    ------
    FormatError
        With the path, and the line if known.
    """
    text = read_text(path, MAX_CONFIG_BYTES)
    check_toml_keys(text, str(path))
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FormatError(f"{path}: nested too deeply") from None
    except ValueError as error:  # from TOML, or a number with thousands of digits
        raise FormatError(f"{path}: not TOML: {error}") from None
