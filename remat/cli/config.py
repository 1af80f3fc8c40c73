"""``remat config``: schema and example of configuration files."""

from __future__ import annotations

import typer

from remat.cli.common import print_json


def command(
    schema: bool = typer.Option(False, "--schema", help="Print the JSON Schema of configuration files."),
    example: bool = typer.Option(False, "--example", help="Print a commented example with every key."),
) -> None:
    """Explain the configuration files of `remat solve --config`.

    Examples
    --------
    remat config --example > run.toml
    """
    from remat import config

    if schema == example:
        raise typer.BadParameter("Choose one of '--schema' and '--example'.")
    if schema:
        print_json(config.schema())
    else:
        print(config.example(), end="")
