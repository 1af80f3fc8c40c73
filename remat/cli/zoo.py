"""``remat zoo``: the built-in graphs."""

from __future__ import annotations

import typer

from remat.cli.common import print_json, print_table
from remat.cli.options import Json


def command(
    family: str | None = typer.Argument(None, metavar="[PREFIX]", help="Only names with this prefix."),
    *,
    as_json: Json = False,
) -> None:
    """List the built-in graphs: name, number of ops, peak without recomputation, and what it is.

    Names that end in `-folded` (no concatenations) are left out; `remat zoo swiftnet` lists all names with that prefix.

    Examples
    --------
    remat zoo swiftnet
    """
    from remat.graphs.zoo import VARIANTS, ZOO
    from remat.graphs.zoo.titles import title_of
    from remat.runtime.sizes import size_text

    names = [name for name in sorted(ZOO) if (name.startswith(family) if family else not name.endswith(VARIANTS))]
    if not names:
        raise typer.BadParameter(f"no zoo graph begins with {family!r}; `remat zoo` lists all")
    graphs = {name: ZOO[name]() for name in names}
    if as_json:
        facts = [
            {"name": name, "ops": len(graph.ops), "reference_peak": graph.reference_peak,
             "title": title_of(name), "source": graph.source}
            for name, graph in graphs.items()
        ]  # fmt: skip
        print_json(facts)
        return
    rows = [
        (name, f"{len(graph.ops):,}", size_text(graph.reference_peak), title_of(name)) for name, graph in graphs.items()
    ]
    print_table([("name", "ops", "peak", "what it is"), *rows], right=(1, 2))
