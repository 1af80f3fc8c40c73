"""Structure of the project: imports, forbidden calls, files of the package."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import networkx as nx
import pytest
import yaml

import remat

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "remat"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: Parts of the package, lowest first; imports point down this list (DESIGN section 2).
PARTS = [
    "_version", "errors", "runtime", "registry", "io", "graphs", "schedule", "modeling", "backends", "problem",
    "formulations", "bounds", "ordering", "heuristics", "allocation", "solving", "hierarchy", "experiments", "torch",
    "jax", "deploy", "testing", "config", "studies", "cli",
]  # fmt: skip
#: Lower parts that a part must not import.
APART = {
    "modeling": {"graphs", "schedule"},
    "backends": {"graphs", "schedule"},
    "formulations": {"backends"},
    "jax": {"torch"},
}
#: Modules that import their parts lazily.
TOP = {"__init__", "__main__"}


#: Cached: several tests parse the same modules.
parse = cache(ast.parse)


@cache
def imports(source: str, *, everywhere: bool) -> list[ast.Import | ast.ImportFrom]:
    """Return the statements that import something at load time, or anywhere."""
    found: list[ast.Import | ast.ImportFrom] = []
    waiting: list[ast.AST] = [parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
    return found


def imported_names(source: str, module: str) -> set[str]:
    """Return the dotted names that `source` imports anywhere, functions and ``if TYPE_CHECKING`` included.

    `module` is its dotted name (a package's own name for an ``__init__``, with a trailing dot).
    """
    names: set[str] = set()
    for node in imports(source, everywhere=True):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def imported_parts(source: str, module: str) -> set[str]:
    """Return the parts of remat that `source` imports anywhere."""
    return {name.split(".")[1] for name in imported_names(source, module) if name.startswith("remat.")}


def circles(sources: dict[str, str]) -> list[set[str]]:
    """Return the sets of modules that import each other, directly or not, anywhere in their sources, by dotted name.

    The package itself is left out: it imports its parts lazily, by name.
    """
    home = {module.rstrip("."): module for module in sources}
    imports: nx.DiGraph[str] = nx.DiGraph()
    for name, module in home.items():
        for imported in imported_names(sources[module], module):
            while imported and imported not in home:  # a name in a module
                imported = imported.rpartition(".")[0]
            if "." in imported and imported != name:
                imports.add_edge(name, imported)
    return [group for group in nx.strongly_connected_components(imports) if len(group) > 1]


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1]) + "." if parts[-1] == "__init__" else ".".join(parts)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def violations(part: str, source: str, module: str) -> set[str]:
    allowed = set(PARTS[: PARTS.index(part) + 1]) - APART.get(part, set())
    return imported_parts(source, module) - allowed


def test_import_reader_finds_all_forms() -> None:
    source = """
import remat.cli
from remat import solve
from remat.backends.base import Backend
from ..heuristics import greedy
from .. import config
def later():
    from remat.bounds import cut
"""
    found = imported_parts(source, "remat.graphs.layered")
    assert found == {"cli", "solve", "backends", "heuristics", "config", "bounds"}
    assert violations("schedule", "from remat.modeling import Model", "remat.schedule.x") == {"modeling"}
    assert violations("schedule", "from remat.graphs import ComputeGraph", "remat.schedule.x") == set()


def test_no_modules_import_each_other() -> None:
    """At load time, in functions or for types."""
    tiny = {
        "remat.": "from remat.a import f",
        "remat.a": "def f():\n    from remat.sub import g",
        "remat.sub.": "from .b import g",
        "remat.sub.b": "if TYPE_CHECKING:\n    import remat.a.f",
        "remat.c": "from remat import a, c, sub",
    }
    assert circles(tiny) == [{"remat.a", "remat.sub", "remat.sub.b"}]
    sources = {dotted(path): path.read_text(encoding="utf-8") for path in MODULES}
    for stub in PACKAGE.rglob("__init__.pyi"):  # lists what its package imports on first use
        sources[dotted(stub)] += "\n" + stub.read_text(encoding="utf-8")
    assert circles(sources) == []


def test_imports_point_down() -> None:
    """For every module; a part that is not in the list has no place in the house."""
    modules = [path for path in MODULES if part_of(path) not in TOP]
    assert {part_of(path) for path in modules} <= set(PARTS)
    wrong = {
        str(path.relative_to(ROOT)): bad
        for path in modules
        if (bad := violations(part_of(path), path.read_text(encoding="utf-8"), dotted(path)))
    }
    assert not wrong


#: Packages of extras, and the part that may import each at module level.
FRAMEWORKS = {
    "torch": "torch",
    "transformers": "torch",
    "lightning": "torch",
    "onnx": "",
    "jax": "jax",
    "tflite": "",
    "executorch": "torch",
}


def loaded_packages(source: str, *, everywhere: bool) -> set[str]:
    """Return the top-level packages that `source` imports at load time, or anywhere."""
    found: set[str] = set()
    for node in imports(source, everywhere=everywhere):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def test_frameworks_are_imported_only_in_their_parts() -> None:
    """Packages of other readers are imported nowhere at module level."""
    late = "import torch.nn\ndef later():\n    from onnx.helper import make_node\nclass A:\n    from jax import jit"
    assert loaded_packages(late, everywhere=True) == {"torch", "onnx", "jax"}
    assert loaded_packages(late, everywhere=False) == {"torch", "jax"}
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        home = {package for package, part in FRAMEWORKS.items() if part == part_of(path)}
        assert not loaded_packages(source, everywhere=False) & set(FRAMEWORKS) - home, path
        assert not loaded_packages(source, everywhere=True) & {"torch", "jax"} - home, path


@pytest.mark.parametrize("folder", sorted((ROOT / "packages").iterdir()), ids=lambda folder: folder.name)
def test_other_distributions_are_independent(folder: Path) -> None:
    """They do not import remat, nor remat them."""
    (package,) = (path.parent.name for path in folder.glob("*/__init__.py"))
    for path in folder.rglob("*.py"):
        assert "remat" not in loaded_packages(path.read_text(encoding="utf-8"), everywhere=True), path
    assert not [
        path for path in MODULES if package in loaded_packages(path.read_text(encoding="utf-8"), everywhere=True)
    ]


def test_design_page_lists_all_parts_in_order() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    plan = page.split("```")[1]
    named = [word for line in plan.splitlines()[2:] for word in re.findall(r"(\w+)(?:/|\.py)", line[:60])]
    assert sorted(named) == sorted(PARTS)
    side_by_side = ("jax", "registry", "errors", "_version")
    heights = [PARTS.index(part) for part in named if part not in side_by_side]
    assert heights == sorted(heights, reverse=True)


def test_few_modules_at_the_top_level() -> None:
    assert len([path for path in PACKAGE.iterdir() if path.is_file()]) <= 10


def test_names_of_test_modules_are_unique() -> None:
    """pytest imports them by name alone."""
    names = [path.name for folder in ("tests", "packages") for path in (ROOT / folder).rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


#: Modules that must not be loaded after each statement; each process runs its statements in order.
LOADED = {
    "shell": [
        ("import remat.cli; remat.cli.main(['--version'])",
         "numpy scipy networkx ortools highspy matplotlib numba pydantic"),
        ("assert remat.cli.main(['solve', 'vgg16', '-b', '2', '-q']) == 1",
         "ortools highspy matplotlib rich.live scipy.sparse"),
        ("import remat.torch", "torch"),
    ],
    "validator": [
        ("import remat.graphs", "networkx scipy numba"),
        ("import remat.graphs.zoo", "networkx scipy numba"),
        ("from remat.schedule import *; b = remat.graphs.GraphBuilder('g'); b.op('a', size=1); g = b.build()", ""),
        ("validate(g, Schedule.reference(g))", "numba ortools highspy matplotlib " + " ".join(
            f"remat.{part}" for part in PARTS[PARTS.index("schedule") + 1 :])),
        ("import remat.schedule.plots", "matplotlib"),
        ("remat.schedule.plots.plot_schedule(g, Schedule.reference(g)).savefig('/dev/null', format='png')",
         "matplotlib.pyplot"),
    ],
    "a proof by few stages": [
        ("import remat; from remat.graphs.zoo import unet; remat.solve(remat.Problem(unet(), '80%'))",
         "ortools numba scipy"),
    ],
    "solvers": [
        ("from remat.backends.minizinc import MiniZinc; MiniZinc.availability()", "minizinc asyncio ortools"),
        ("import remat.solving.conclusion", "remat.solving.portfolio remat.solving.min_peak_search"),
        ("import remat.solving.least_known_budget", "remat.solving.solve"),  # solve() imports it
        ("import remat.heuristics.blocks", "networkx"),
        ("from remat.solving.solve import solve; assert remat.solve is solve", ""),
        ("import remat.graphs.zoo; solve(remat.Problem(remat.graphs.zoo.vgg16(), '80%'))", "ortools highspy"),
        # pandas, which OR-Tools' modelling layer imports, takes half a second
        ("import remat.backends.cp_sat.translation", "pandas ortools.sat.python.cp_model"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("process", LOADED)
def test_lazy_imports(process: str) -> None:
    lines = ["import sys"]
    for statement, unwanted in LOADED[process]:
        lines += [statement, f"assert not (loaded := {set(unwanted.split())} & sys.modules.keys()), loaded"]
    code = "\n".join(lines)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def faults(source: str) -> list[str]:
    """Return what a module must not have or lacks, with lines."""
    found = [] if ast.get_docstring(parse(source)) else ["no docstring"]
    runs_programs = "subprocess" in loaded_packages(source, everywhere=True)
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            names = {alias.name for alias in node.names}
            unsafe = {name.split(".")[0] for name in origin} & {"pickle", "cPickle", "dill", "marshal", "shelve"}
            if unsafe and (origin != ["pickle"] or names != {"dumps"}):  # writing a pickle is safe
                found.append(f"line {node.lineno}: {unsafe}")
        elif isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            if called in {"eval", "exec", "compile", "__import__"}:
                found.append(f"line {node.lineno}: {called}")
            found += [
                f"line {node.lineno}: {keyword.arg}"
                for keyword in node.keywords
                if keyword.arg in ("allow_pickle", "shell" if runs_programs else "")
                and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
            ]
        elif isinstance(node, ast.Attribute | ast.Name):
            # an asynchronous exception may hit thread creation, an import, or a lock
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in {"pythonapi", "PyThreadState_SetAsyncExc"}:
                found.append(f"line {node.lineno}: asynchronous exception")
    return found


def test_modules_are_documented_and_safe() -> None:
    """One test for all: hundreds would each cost more than they check."""
    unsafe = """import shelve, subprocess
from pickle import dumps, loads
eval('1')
run(1, shell=True)
ctypes.pythonapi"""
    assert [fault.partition(": ")[0] for fault in faults(unsafe)] == [
        "no docstring", "line 1", "line 2", "line 3", "line 4", "line 5",
    ]  # fmt: skip
    assert faults('"""Text."""\nfrom pickle import dumps\nrun(1, shell=False)') == []
    wrong = {str(path.relative_to(ROOT)): faults(path.read_text(encoding="utf-8")) for path in MODULES}
    assert not {path: found for path, found in wrong.items() if found}


def test_no_absolute_paths_of_a_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    home = re.compile(r"(?<![\w.])/(work|home|root|Users)/")
    for name in tracked.stdout.split():
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".yml", ".json", ""} and path != Path(__file__):
            assert not home.search(path.read_text(encoding="utf-8")), name


def built_version(folder: Path) -> str:
    command = [sys.executable, "-m", "hatchling", "metadata", "version"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_version_comes_from_the_tag(tmp_path: Path) -> None:
    """Of its own repository, of its archive, or of its sdist; without any, it is the fallback."""

    def git(folder: Path, *words: str) -> None:
        author = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "tag.gpgSign=false", "-c", "commit.gpgSign=false"]
        subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)

    outer, checkout, copy, archive = (tmp_path / name for name in ("outer", "outer/checkout", "outer/copy", "archive"))
    for folder in (checkout, copy):
        (folder / "remat").mkdir(parents=True)
        for name in ("pyproject.toml", "build_version.py", ".gitattributes", "README.md", "remat/__init__.py"):
            shutil.copy(ROOT / name, folder / name)
    for folder in (outer, checkout):
        git(folder, "init")
        git(folder, "commit", "--allow-empty", "-m", "first")
    git(outer, "tag", "v9.9.9")
    assert built_version(checkout) == built_version(copy) == "0.0.0"
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "second")
    git(checkout, "tag", "-a", "v1.2.3rc1", "-m", "an annotated one")
    assert built_version(checkout) == "1.2.3rc1"
    git(checkout, "commit", "--allow-empty", "-m", "third")
    assert built_version(checkout) == "1.2.3rc1.post1"
    archive.mkdir()
    git(checkout, "archive", "-o", str(tmp_path / "archive.tar"), "HEAD")
    shutil.unpack_archive(tmp_path / "archive.tar", archive)
    assert built_version(archive) == "1.2.3rc1.post1"
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist"], cwd=checkout, check=True)
    shutil.unpack_archive(checkout / "dist" / "remat-1.2.3rc1.post1.tar.gz", outer)
    assert built_version(outer / "remat-1.2.3rc1.post1") == "1.2.3rc1.post1"


def test_shell_and_metadata_have_the_same_version(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    from remat.cli import main

    main(["--version"])
    assert capsys.readouterr().out == f"remat {remat.__version__}\n" == f"remat {version('remat')}\n"


@pytest.mark.slow
def test_wheel_has_types_and_schemas(tmp_path: Path) -> None:
    """Built with the installed build backend, without network."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "remat/py.typed" in names
    schemas = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.schema.json")}
    assert len(schemas) >= 2, "the graph and the schedule format each have a JSON Schema in the package"
    assert schemas <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_modelling_layer_names_no_solver() -> None:
    from remat import registry

    families = {"cpsat", "or-tools", "ortools", "gecode", "cbc", "gurobi"}
    names = [re.escape(name) for name in {*registry.backends(), *families}]
    named = re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE)
    for path in (PACKAGE / "modeling").rglob("*"):
        if path.suffix in {".py", ".pyi"}:
            tree = parse(path.read_text(encoding="utf-8"))
            words = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
            words += [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
            assert not [word for word in [*words, path.stem] if named.fullmatch(word)], path
        else:
            assert path.suffix in {"", ".pyc"}, f"{path} belongs to the backend that reads it"


def test_workflows_call_existing_targets() -> None:
    """Also requires the keys that GitHub needs."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in sorted((ROOT / ".github").rglob("*.yml")):
        text = path.read_text(encoding="utf-8")
        document = yaml.load(text, yaml.BaseLoader)
        needed = {"workflows": {"on", "jobs"}, "ISSUE_TEMPLATE": {"name", "body"}}.get(path.parent.name, set())
        assert path.name == "config.yml" or needed <= set(document), path
        assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets, path


def test_tested_versions_agree() -> None:
    """Of Python and PyTorch: metadata, Makefile, workflow and pages name the same."""

    def read(name: str) -> str:
        return (ROOT / name).read_text(encoding="utf-8")

    jobs = yaml.load(read(".github/workflows/tests.yml"), yaml.BaseLoader)["jobs"]
    minors = [int(version.removeprefix("3.")) for version in jobs["tests"]["strategy"]["matrix"]["python"]]
    first, last = minors[0], minors[-1]
    assert minors == list(range(first, last + 1))
    project = tomllib.loads(read("pyproject.toml"))["project"]
    classifiers = [f"Programming Language :: Python :: 3.{minor}" for minor in minors]
    assert [name for name in project["classifiers"] if "Python :: 3." in name] == classifiers
    for path in (ROOT / "packages").glob("*/pyproject.toml"):
        other = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        assert other["requires-python"] == project["requires-python"] == f">=3.{first}"
    assert tomllib.loads(read("pyproject.toml"))["tool"]["ruff"]["target-version"] == f"py3{first}"
    makefile = read("Makefile")
    assert f"(3, {first}) <= sys.version_info[:2] <= (3, {last})" in makefile
    assert " ".join(f"python3.{minor}" for minor in reversed(minors)) in makefile
    for page in ("README.md", "CONTRIBUTING.md", "docs/install.md", "packages/minizinc-solvers/README.md", "Makefile"):
        named = set(re.findall(r"Python (3\.\d+ to 3\.\d+)\b", read(page)))
        assert named == {f"3.{first} to 3.{last}"}, page

    torch = re.findall(r'Version\("2\.(\d+)"\)', read("remat/torch/versions.py"))
    tested = [f"2.{minor}" for minor in range(int(torch[0]), int(torch[-1]) + 1)]
    assert jobs["torch"]["strategy"]["matrix"]["torch"] == [*tested, "nightly"]
    assert project["optional-dependencies"]["torch"] == [f"torch>={tested[0]}"]
    assert f"TORCH ?= torch=={tested[0]}." in makefile
    assert f"PyTorch {', '.join(tested[:-1])} and {tested[-1]}" in read("docs/pytorch/capture.md")
