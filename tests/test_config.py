"""Configuration files: reachable settings, refusal of unknown keys."""

import json
import math
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import jsonschema
import pytest
from refusals import check_text, refused
from shell import OWN_CLASSES

from remat import registry
from remat.config import Config, example, make_options, schema
from remat.config.sections import SolveSection
from remat.errors import BackendError, FormatError, ProblemError, RematError
from remat.formulations.retention_intervals import RetentionIntervalsOptions
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.heuristics.drops import Drops
from remat.hierarchy.partition.h_partition import HPartitionOptions
from remat.io.files import MAX_CONFIG_BYTES
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Schedule
from remat.schedule.io import read_schedule, write_schedule
from remat.solving.auto import AutoOptions
from remat.solving.portfolio import Stage

RUN = """
[problem]
graph = "chain.json"
budget = 5

[solve]
method = "retention-intervals"
backend = "cp-sat"
threads = 1
time_limit = 60

[output]
schedule = "out.json"
plot = "out.svg"

[formulations.retention-intervals]
copies = 3

[backends.cp-sat]
linearization_level = 0
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a configuration in a separate folder with its graph."""
    folder = tmp_path / "runs"
    folder.mkdir()
    write_graph(unit_chain(4), folder / "chain.json")
    (folder / "run.toml").write_text(RUN, encoding="utf-8")
    return folder / "run.toml"


def test_paths_are_relative_to_the_file(run: Path) -> None:
    config = Config.from_file(run)
    result = config.run()
    assert (result.status, result.objective) == ("optimal", 10)
    assert (result.method, result.backend, result.threads) == ("retention-intervals", "cp-sat", 1)
    assert read_schedule(run.parent / "out.json").num_computes == 10
    assert b"<svg" in (run.parent / "out.svg").read_bytes()
    assert config.options_of("retention-intervals") == RetentionIntervalsOptions(copies=3)
    assert result.scope.max_computes == 3


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ('backend = "cp-sat"', 'backend = "highs"', ("retention-intervals", "highs", 10)),
        ('method = "retention-intervals"', 'method = "checkmate"', ("checkmate", "cp-sat", 10)),
        ('method = "retention-intervals"', 'method = "greedy"', ("greedy", "", 10)),
    ],
)
def test_method_and_solver_change_in_one_line(run: Path, old: str, new: str, found: object) -> None:
    """Options of other methods and solvers may stay."""
    text = run.read_text(encoding="utf-8")
    assert old in text
    run.write_text(text.replace(old, new), encoding="utf-8")
    result = Config.from_file(run).run()
    assert (result.method, result.backend, result.objective) == found


def test_method_names_its_backend_with_a_variant() -> None:
    section = SolveSection(method="stages/minizinc:gecode")
    assert (section.method, section.backend) == ("stages", "minizinc:gecode")


def test_all_arguments_of_solve_are_passed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import remat.solving.solve  # noqa: F401

    graph = unit_chain(4)
    write_schedule(Schedule.reference(graph), run.parent / "start.json")
    tensor, op = graph.tensors[0].name, graph.ops[0].name
    run.write_text(
        f"""
        [problem]
        graph = "chain.json"
        budget = "90%"
        order = "free"
        max_computes = {{ {op} = 3 }}
        keep = ["{tensor}"]
        count_constant_memory = true
        [solve]
        method = "retention-intervals"
        backend = "minizinc:gecode"
        time_limit = 7
        gap = 0.25
        threads = 2
        seed = 11
        isolate = true
        memory_limit = "3GiB"
        warm_start = "start.json"
        [formulations.retention-intervals]
        precedence = "reservoir"
        [backends.minizinc]
        a = 1
        b = 1
        [backends."minizinc:gecode"]
        b = 2
        """,
        encoding="utf-8",
    )
    calls = []

    def spy(*arguments: object, **named: object) -> object:
        calls.append((arguments, named))
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["remat.solving.solve"], "solve", spy)
    with pytest.raises(KeyboardInterrupt):
        Config.from_file(run).run()
    ((problem, method, backend), named) = calls[0]
    assert (problem.budget_bytes, problem.order, problem.max_computes) == (5, "free", {op: 3})
    assert (problem.keep, problem.count_constant_memory) == ({tensor}, True)
    assert (method, backend) == ("retention-intervals", "minizinc:gecode")
    assert named.pop("warm_start") == Schedule.reference(graph)
    assert named.pop("method_options") == RetentionIntervalsOptions(precedence="reservoir")
    options = named.pop("options")
    assert options == SolveOptions(
        options.deadline, relative_gap=0.25, threads=2, seed=11, isolate=True, memory_limit="3GiB",
        solver={"a": 1, "b": 2},
    )  # fmt: skip
    assert options.deadline.seconds == math.inf
    assert named.pop("stop").seconds == 7.0  # a running clock: reading counts
    assert named == {"on_progress": None}


def test_zoo_graph_or_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[problem]\ngraph = "vgg16"\n', encoding="utf-8")
    assert Config.from_file(tmp_path / "run.toml").make_problem().budget_bytes is None
    write_graph(unit_chain(2), tmp_path / "vgg16.json")
    (tmp_path / "vgg16.json").rename(tmp_path / "vgg16")
    assert Config.from_file(tmp_path / "run.toml").make_problem().graph.name == "unit-chain-2"


def test_configuration_is_immutable(run: Path) -> None:
    config = Config.from_file(run)
    with pytest.raises(ValueError, match="frozen"):
        config.solve.backend = "highs"  # type: ignore[misc]


# -- errors ----------------------------------------------------------------------------------------------------------


#: Errors that the schema cannot express: ranges of numbers given as text, rules of options, names of methods.
BEYOND_SCHEMA = {
    "[formulations.retention-intervals]\ncopies = 0", "[solve]\nmethod = 'gredy'", "[solve]\ngap = 1.0",
    "[solve]\ntime_limit = inf", "[solve]\ntime_limit = 0",
}  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        *(f"[solve]\n{line}" for line in (
            "backnd = 'highs'", "xyzzy = 1", "method = 'gredy'", "method = 3", "threads = 0", "threads = 'many'",
            "threads = true", "seed = -1", "gap = 1.0", "time_limit = inf", "time_limit = 0", "isolate = 1",
            "warm_start = 1979-05-27",
        )),
        *(f"[formulations.retention-intervals]\n{line}" for line in (
            "copis = 3", "copies = '3'", "copies = 0", "precedence = 'covr'",
        )),
        *(f"[{table}]\na = 1" for table in (
            "formulations.chekmate", "formulations.greedy", "methods.gredy", "backends.cpsat",
        )),
        "[slove]\nbackend = 'highs'", "[output]\njsn = true", "[output]\nplot = ['a.png']", "solve = 3", "backends = 3",
        "[backends]\ncp-sat = 3",
    ],
)  # fmt: skip
def test_errors_name_wrong_keys(more: str, tmp_path: Path, tables: dict[str, object]) -> None:
    """Reader and schema refuse the same files."""
    top, _, rest = more.partition("\n") if "=" in more.partition("\n")[0] else ("", "", more)
    path = tmp_path / "run.toml"
    path.write_text(f'{top}\n[problem]\ngraph = "vgg16"\n{rest}\n', encoding="utf-8")
    with pytest.raises(RematError) as caught:
        Config.from_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and message.isprintable() and caught.value.culprit in message
    check_text("configuration.keys", f"{more!r} -> {message}", {f"{path}: ": ""})
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    assert jsonschema.Draft202012Validator(tables).is_valid(content) == (more in BEYOND_SCHEMA)


@pytest.mark.parametrize(
    "problem",
    [
        {},
        {"graph": 3},
        {"graph": "g", "order": "any"},
        {"graph": "g", "objective": "peak"},
        {"graph": "g", "budget": []},
        {"graph": "g", "keep": "t"},
        {"graph": "g", "keep": ["t", 3]},
        {"graph": "g", "max_computes": {"a": 0}},
        {"graph": "g", "bugdet": "80%"},
        None,
    ],
)
def test_errors_of_problems(problem: dict[str, object] | None, tables: dict[str, object]) -> None:
    content = {} if problem is None else {"problem": problem}
    with pytest.raises(FormatError) as caught:
        Config.from_mapping(content)
    assert not jsonschema.Draft202012Validator(tables).is_valid(content)
    check_text("configuration.problem", f"{problem} -> {caught.value}")


def test_errors_name_the_command_line_option(run: Path) -> None:
    with refused("format.wrong-option", culprit="--time-limit"):
        Config.from_file(run, {"solve": {"time_limit": 0}})


@pytest.mark.parametrize(
    "content",
    [
        b"[problem\n", b"a = 1\na = 2\n", b"\xff\xfe", b"a = " + b"[" * 100_000, b"a = " + b"9" * 10_000,
        b"#" * (MAX_CONFIG_BYTES + 1),
    ],
)  # fmt: skip
def test_damaged_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(FormatError) as caught:
        Config.from_file(tmp_path / "run.toml")
    assert str(caught.value).startswith(f"{tmp_path / 'run.toml'}: ")
    check_text("configuration.file", f"{content[:20]!r} -> {caught.value}")


def test_files_are_checked_before_the_solve(run: Path) -> None:
    missing = Config.from_file(run, {"problem": {"graph": "nowhere.json"}})
    with pytest.raises(FormatError, match=r"nowhere\.json: no such file"):
        missing.run()
    for section, key, name, message in (
        ("output", "schedule", "no/such/s.json", "no/such"),
        ("output", "plot", "x.bmp", r"\.png"),
        ("solve", "warm_start", "missing.json", r"missing\.json"),
    ):
        with pytest.raises(FormatError, match=message):
            Config.from_file(run, {section: {key: name}}).run()
    unreadable = Config.from_file(run, {"problem": {"budget": "much"}})
    with pytest.raises(ProblemError, match="'much'"):
        unreadable.run()


def test_options_for_a_formulation_without_options() -> None:
    bare = [name for name, kind in registry.formulations().items() if kind.options_type is None]
    for name in bare:
        with refused("format.no-options", culprit=name):
            make_options(name, {"a": 1})


# -- schema and example ----------------------------------------------------------------------------------------------


def test_example_is_valid_and_complete(tmp_path: Path, tables: dict[str, object]) -> None:
    text = example()
    # every commented key as a key
    full = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    for content in (text, full):
        jsonschema.Draft202012Validator(tables).validate(shown := tomllib.loads(content))
        (tmp_path / "run.toml").write_text(content, encoding="utf-8")
        Config.from_file(tmp_path / "run.toml")
    for section in ("problem", "solve", "output"):
        kind = Config.model_fields[section].annotation
        assert set(shown[section]) == {entry.alias or name for name, entry in kind.model_fields.items()}
    absent = set(re.findall(r"^# (\w+) =$", text, flags=re.MULTILINE))  # options with the default None
    for group in ("formulations", "heuristics"):
        for name, kind in registry.Registered(group).items():
            if kind.options_type is not None:
                names = {field.name for field in fields(kind.options_type)}
                assert names - absent <= set(shown[group][name]) <= names


def test_example_shows_the_defaults() -> None:
    tables = tomllib.loads(example())
    config = Config.from_mapping(tables)
    bare = Config.from_mapping({"problem": {"graph": "vgg16"}})
    assert config.output == bare.output
    assert config.solve.model_copy(update={"time_limit": None}) == bare.solve
    assert config.problem.model_copy(update={"budget": None}) == bare.problem
    assert config.options_of("retention-intervals") == RetentionIntervalsOptions()


@pytest.fixture(scope="module")
def tables() -> dict[str, object]:
    """Return the schema, checked to be JSON and a schema."""
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    options = made["properties"]["methods"]["properties"]["hierarchical"]["properties"]
    assert all(option["description"] for option in options.values())
    return made


# -- classes and objectives ------------------------------------------------------------------------------------------


def test_classes_are_imported_only_if_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_of_test_config.py").write_text("open('imported', 'w').close()\n" + OWN_CLASSES)
    tables = {"problem": {"graph": "vgg16", "budget": "90%"}, "solve": {"method": "mine_of_test_config:Mine"}}
    with refused("format.import-not-allowed", culprit="mine_of_test_config:Mine"):
        Config.from_mapping(tables)
    with refused("format.import-not-allowed"):
        Config.model_validate(tables).run(write=False)
    solver = {"method": "checkmate", "backend": "mine_of_test_config:MySolver"}
    with refused("format.import-not-allowed", culprit="mine_of_test_config:MySolver"):
        Config.from_mapping({**tables, "solve": solver})
    assert not (tmp_path / "imported").exists()
    assert Config.from_mapping(tables, allow_imports=True).run(write=False).method == "mine"
    assert (tmp_path / "imported").exists()
    typed = Config.from_mapping({"problem": tables["problem"]}, overrides={"solve": tables["solve"]})
    assert typed.run(write=False).method == "mine"


def test_options_of_a_class() -> None:
    word = "remat.heuristics.drops:Drops"
    tables: dict[str, dict[str, object]] = {
        "problem": {"graph": "vgg16", "budget": "90%"}, "solve": {"method": word},
        "heuristics": {word: {"leanings": [2.0]}},
    }  # fmt: skip
    config = Config.from_mapping(tables, allow_imports=True)
    assert config.options_of(word).leanings == (2.0,)
    with refused("format.wrong-key", culprit="leaning"):
        Config.from_mapping({**tables, "heuristics": {word: {"leaning": [2.0]}}}, allow_imports=True)
    with refused("format.import-not-allowed", culprit=word):
        Config.from_mapping(tables)
    with refused("format.options-of-other-class", culprit=word):
        Config.from_mapping({**tables, "solve": {}}, allow_imports=True)


@pytest.mark.parametrize(
    "word",
    ["nowhere.at_all:Mine", "remat.errors:Mine", "remat.runtime.deadline:time", "remat.errors:RematError", "x y:z"],
)
def test_wrong_classes(word: str) -> None:
    problem = {"problem": {"graph": "vgg16", "budget": "90%"}}
    with pytest.raises(RematError) as caught:
        Config.from_mapping(problem, overrides={"solve": {"method": word}}).run()
    check_text("configuration.class", f"{word} -> {caught.value}")


def test_options_of_solvers_of_levels() -> None:
    text = {
        "problem": {"graph": "vgg16"}, "solve": {"method": "hierarchical"},
        "methods": {"hierarchical": {"leaf_backend": "highs", "group_backend": "minizinc:gecode"}},
        "backends": {"highs": {"presolve": "on"}, "minizinc": {"a": 1}, "cp-sat": {"b": 2}},
    }  # fmt: skip
    options = Config.from_mapping(text).options_of("hierarchical")
    assert options.solver_options == {"highs": {"presolve": "on"}, "minizinc:gecode": {"a": 1}}
    for wrong in ({"leaf_backend": "pyomo:./cbc"}, {"solver_options": {"highs": {"log_file": "x"}}}):
        with pytest.raises(BackendError, match=r"names? a file.* command line"):
            Config.from_mapping({**text, "methods": {"hierarchical": wrong}})


def test_stages_of_auto() -> None:
    stages = [
        {"method": "eviction", "share": 0.5, "when": ["fixed-order"]},
        {"method": "turns", "options": {"lns": 1}},
    ]
    text = {"problem": {"graph": "vgg16", "budget": "90%"}, "methods": {"auto": {"stages": stages}}}
    wanted = Stage("eviction", 0.5, when=("fixed-order",)), Stage("turns", options={"lns": 1})
    assert Config.from_mapping(text).options_of("auto") == AutoOptions(wanted)
    for wrong, error, culprit in (
        ({"method": "drops", "shar": 0.5}, "format.wrong-key", "shar"),
        ({"share": 0.5}, "format.wrong-key", "method"),
        ({"method": "drops", "when": "training"}, "format.wrong-key", "when"),
        ({"method": "drops", "when": ["trainig"]}, "problem.bad-options", "trainig"),
        ({"method": "module:Class"}, "problem.bad-options", "module:Class"),
        ({"method": "lns", "options": {"size": "x"}}, "problem.bad-options", "size"),
    ):
        with refused(error, culprit=culprit):
            Config.from_mapping({**text, "methods": {"auto": {"stages": [wrong]}}})
    for wrong in (
        {"method": "stages/pyomo:./cbc"},
        {"method": "lns", "options": {"backend": "pyomo:./cbc"}},
        {"method": "lns", "options": {"backend": "highs", "solver_options": {"log_file": "x"}}},
    ):
        with pytest.raises(BackendError, match=r"names? a file.* command line"):
            Config.from_mapping({**text, "methods": {"auto": {"stages": [wrong]}}})


def test_options_of_partitioners_and_methods_of_levels() -> None:
    text = {
        "problem": {"graph": "vgg16"}, "solve": {"method": "hierarchical", "backend": "highs"},
        "methods": {"hierarchical": {"leaf_methods": ["drops", "eviction"]}},
        "partitioners": {"h-partition": {"max_top": 10}},
        "heuristics": {"drops": {"leanings": [3.0]}}, "formulations": {"h-ilp": {"ahead": True}},
    }  # fmt: skip
    config = Config.from_mapping(text)
    options = config.options_of("hierarchical")
    assert options.partitioners[1].options == HPartitionOptions(max_top=10)
    assert [type(each) for each in options.leaf_methods] == [Drops, str] and options.leaf_methods[
        0
    ].options.leanings == (3.0,)
    assert options.group_methods[1].options.ahead and options.top_methods[1].options.leanings == (3.0,)
    assert repr(options) == repr(config.options_of("hierarchical"))  # compared by resumed frontiers
    typed = config.with_options({"depth": 2, "h-partition.alpha": 0.0, "drops.leanings": [4.0]}).options_of(
        "hierarchical"
    )
    assert typed.depth == 2 and typed.leaf_methods[0].options.leanings == (4.0,)
    assert typed.partitioners[1].options == HPartitionOptions(max_top=10, alpha=0.0)
    alone = {key: text[key] for key in ("problem", "solve", "partitioners")}
    assert Config.from_mapping(alone).options_of("hierarchical").partitioners[1].options.max_top == 10
    with refused("format.wrong-key", culprit="max_tops"):
        Config.from_mapping({**alone, "partitioners": {"h-partition": {"max_tops": 10}}})
    with refused("format.wrong-key", culprit="h-partitoin"):
        Config.from_mapping({**alone, "partitioners": {"h-partitoin": {}}})


def test_outputs_stay_in_the_folder(tmp_path: Path) -> None:
    """The folder of the file or the current one; links are followed; the command line may name any path."""
    (tmp_path / "link").symlink_to("/")
    problem = {"graph": "vgg16"}
    for outside in ("/schedule.json", "../schedule.json", "link/schedule.json"):
        tables = {"problem": problem, "output": {"schedule": outside}}
        with refused("format.output-outside", hide={str(tmp_path): "<folder>"}):
            Config.from_mapping(tables, folder=tmp_path)
        assert Config.from_mapping(tables, folder=tmp_path, allow_output_outside=True).output.schedule is not None
        assert Config.from_mapping(tables, "typed", tmp_path, {"output": tables["output"]}).output.schedule == outside
    for inside in ("schedule.json", "more/schedule.json", "-", str(Path.cwd() / "schedule.json")):
        Config.from_mapping({"problem": problem, "output": {"schedule": inside}}, folder=tmp_path)
