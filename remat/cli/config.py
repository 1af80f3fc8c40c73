"""``remat config``: what a configuration file may say."""

from __future__ import annotations

from typing import Annotated

import typer

from remat.cli.common import print_json


def command(
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of configuration files.")] = False,
    example: Annotated[bool, typer.Option("--example", help="Print a commented example with every key.")] = False,
) -> None:
    """Explain the configuration files of `remat solve --config`."""
    from remat import config

    if schema == example:
        raise typer.BadParameter("Choose one of '--schema' and '--example'.")
    if schema:
        print_json(config.schema())
    else:
        print(config.example(), end="")
