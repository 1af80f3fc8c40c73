"""``minizinc-solvers``: register the programs with MiniZinc."""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

SHARE = Path(__file__).resolve().parent / "share" / "minizinc"
#: MiniZinc's folder for solver configurations of the user.
USER_FOLDER = Path(".minizinc", "solvers")


def environment_folder() -> Path:
    """Return the folder of this Python environment that holds the solver configurations, for ``MZN_SOLVER_PATH``."""
    return Path(sysconfig.get_path("data"), "share", "minizinc", "solvers")


def install(folder: Path) -> list[Path]:
    """Write configurations with absolute paths into `folder`; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    scripts = Path(sysconfig.get_path("scripts"))
    written = []
    for template in sorted(SHARE.glob("solvers/*.msc")):
        configuration = json.loads(template.read_text(encoding="utf-8"))
        configuration["executable"] = str(scripts / Path(configuration["executable"]).name)
        if not configuration["mznlib"].startswith("-G"):
            configuration["mznlib"] = str((template.parent / configuration["mznlib"]).resolve())
        path = folder / template.name
        path.write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")
        written.append(path)
    return written


def uninstall(folder: Path) -> list[Path]:
    """Remove the configurations from `folder`; return the files."""
    removed = []
    for template in sorted(SHARE.glob("solvers/*.msc")):
        path = folder / template.name
        if path.exists():
            path.unlink()
            removed.append(path)
    return removed


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``minizinc-solvers``."""
    parser = argparse.ArgumentParser("minizinc-solvers", description="Register CP-SAT and HiGHS with MiniZinc.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("install", help="for this user: every 'minizinc' lists them (~/.minizinc/solvers)")
    commands.add_parser("uninstall", help="take that back")
    commands.add_parser("path", help="print the folder for MZN_SOLVER_PATH, which registers them for one shell only")
    command = parser.parse_args(arguments).command
    folder = Path.home() / USER_FOLDER
    try:
        if command == "path":
            print(environment_folder())
        else:
            for path in install(folder) if command == "install" else uninstall(folder):
                print(path)
    except OSError as error:
        print(f"minizinc-solvers: error: {folder}: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None
