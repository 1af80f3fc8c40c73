"""Audits: many schedules, manifests, reports, certificate files and their verification."""

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import steps
from refusals import check_text
from shell import facts, ok

from remat import Problem, read_graph, solve, validate
from remat.schedule import Machine, Rules, Schedule, write_schedule

pytestmark = pytest.mark.usefixtures("folder")
FILES = ("reference.json", "frugal.json", "broken.json")


@pytest.fixture(autouse=True)
def schedules(folder: Path) -> None:
    """Write schedules of ``chain.json``: peak 6, peak 5, and a list that frees too early and lacks an op."""
    graph = read_graph("chain.json")
    write_schedule(Schedule.reference(graph), FILES[0])
    found = solve(Problem(graph, 5), "greedy").schedule
    assert found is not None
    write_schedule(found, FILES[1])
    write_schedule(steps(["f0", "f1", "f2", "-f1", "f3", "loss", "g3", "g2", "g1"]), FILES[2])


def test_table_shows_the_overhead_of_the_time_on_a_machine() -> None:
    moves = [("offload", "f0"), ("free", "f0"), ("fetch", "f0")]
    computes = [("compute", name) for name in read_graph("chain.json").order or ()]
    write_schedule(Schedule.from_steps([*computes[:2], *moves, *computes[2:]]), "moved.json")
    line = f"validate chain.json {FILES[0]} moved.json"
    plain, timed = ok(line).out, ok(f"{line} --machine rate=1B/s,compute=1").out
    assert [row.split("%")[0].split()[-1] for row in plain.splitlines() if ".json " in row and "%" in row] == ["0", "0"]
    found = validate(read_graph("chain.json"), "moved.json", Rules(machine=Machine(1, 1, compute_rate=1)))
    share = f"{100 * (found.time - found.base_cost) / found.base_cost:.4g}"
    assert [row.split("%")[0].split()[-1] for row in timed.splitlines() if ".json " in row and "%" in row] == [
        "0",
        share,
    ]
    assert float(share) > 0


def test_many_schedules_and_reports() -> None:
    reports = ("r.csv", "r.xml", "r.sarif", "r.json")
    ok(f"validate chain.json {FILES[1]} -b 5")
    ok(f"validate chain.json {FILES[0]} {FILES[1]} -b 5", code=1)
    line = f"validate chain.json {' '.join(FILES)} absent.json -b 5 -o {' -o '.join(reports)}"
    shown = ok(line, code=2).out
    verdicts = ["over budget", "valid", "invalid", "not read"]
    rows = [row for row in shown.splitlines() if ".json " in row or ".txt" in row]
    assert all(verdict in row for verdict, row in zip(verdicts, rows[-4:], strict=True)), shown

    table = [row.split(",")[3] for row in Path("r.csv").read_text().splitlines()[1:]]
    assert table == verdicts
    suite = ElementTree.parse("r.xml").getroot()[0]
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["4", "2", "1"]
    assert [[part.tag for part in case] for case in suite] == [["failure"], [], ["failure"], ["error"]]
    assert "> step 8" in (suite[2][0].text or "")

    run = json.loads(Path("r.sarif").read_text())["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[found["ruleIndex"]]["id"] == found["ruleId"] for found in run["results"])
    assert [found["ruleId"] for found in run["results"]][:3] == ["budget", "budget", "input-not-live"]
    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    step = validate(read_graph("chain.json"), Schedule.reference(read_graph("chain.json")), Rules(budget=5)).first
    assert step is not None and json.loads(
        Path(FILES[0]).read_text().splitlines()[region["startLine"] - 1].rstrip(",")
    ) == ["compute", step.op]
    assert not run["invocations"][0]["executionSuccessful"]
    assert [each.get("error", "") for each in json.loads(Path("r.json").read_text())["certificates"]] == [
        "", "", "", "absent.json: no such file",
    ]  # fmt: skip


def test_context_of_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that decides the verdict, five steps, the tensor's life, and equal faults together."""
    monkeypatch.setenv("COLUMNS", "100")
    shown = ok(f"validate chain.json {FILES[2]} -b 4", code=1).out.splitlines()
    at = next(k for k, line in enumerate(shown) if line.startswith("in the file"))
    assert " ".join(" ".join(shown[at:]).split()) == (  # lines break by the width of the terminal
        "in the file line 16 of broken.json (step 8) "
        "around step 6 5 bytes compute g3 step 7 6 bytes compute g2 > step 8 7 bytes compute g1 "
        "life 'f1', 1 byte: produced at step 1 by 'f1', freed at step 3; read at steps 2, 8 "
        "The schedule is not valid; `remat view` marks every fault."
    )
    write_schedule(steps(["f0", "f1", "f2", "-f1", "f2", "f3", "loss", "f2", "g3", "g2", "g1", "g0"]), "twice.json")
    shown = ok("validate chain.json twice.json", code=1).out.splitlines()
    at = next(k for k, line in enumerate(shown) if line.startswith("violation"))
    assert shown[at].endswith("step 4: op 'f2' reads tensor 'f1', which was freed at step 3")
    assert shown[at + 1].strip() == "the same at steps 7, 10"
    Path("list.txt").write_text("f0\nf1\nf2\nf3\nloss\ng3\ng2\ng1\ng0\n")
    assert "read as       plain-list" in ok("validate chain.json list.txt").out


@pytest.mark.parametrize(
    ("text", "step", "line"),
    [
        ("# order\nf0\n\nf1\nf2\nf3\n# backward\nloss\ng3\ng1\ng2\ng0\n", 6, 10),
        ('["f0", "f1", "f2",\n "f3", "loss", "g3",\n "g1",\n"g2", "g0"]', 6, 3),
        ("Fe_0 Fe_1 Fe_2\nFe_3\nL\nB_3, B_2\nB_0\nB_1", None, 5),
    ],
    ids=["text", "JSON", "Rotor"],
)
def test_line_of_a_fault(text: str, step: int | None, line: int) -> None:
    """Files of text name the line of the step, in words, JSON, next to a page, and next to a picture of one of them."""
    Path("list.txt").write_text(text)
    shown = ok("validate chain.json list.txt", code=1).out
    assert f"line {line} of list.txt (step " in shown
    first = json.loads(ok("validate chain.json list.txt --json", code=1).out)["violations"][0]
    assert first["line"] == line and (step is None or first["step"] == step)
    commands = ["plot chain.json list.txt -o list.svg"] * text.startswith("#")
    for command in (*commands, "view chain.json list.txt -o list.html"):
        assert f"(line {line} of list.txt)" in ok(command).err
    assert f"(line {line} of list.txt)" in Path("list.html").read_text()


@pytest.mark.parametrize("suffix", ["toml", "json", "csv"])
def test_manifests(suffix: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"graph": "chain.json", "schedule": name, "budget": budget} for name, budget in zip(FILES, "65%", strict=False)
    ]
    lines[2].pop("budget")
    texts = {
        "json": json.dumps({"check": lines}),
        "toml": "".join(
            "[[check]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in line.items()) for line in lines
        ),
        "csv": "graph,schedule,budget\n" + "".join(",".join([*line.values(), ""][:3]) + "\n" for line in lines),
    }
    Path(f"all.{suffix}").write_text(texts[suffix])
    monkeypatch.chdir("/")  # paths are relative to the manifest
    found = json.loads(ok(f"validate --manifest {folder}/all.{suffix} --json", code=1).out)["certificates"]
    assert [each["certificate"]["verdict"] for each in found] == ["valid", "valid", "invalid"]
    assert [each["certificate"]["rules"]["budget"] for each in found] == [6, 5, None]


BAD = {
    "m.txt": "",
    "empty.toml": "check = []",
    "typo.toml": "[[check]]\ngraph = 'chain.json'\nschedul = 's.json'",
    "columns.csv": "graph,plan\na,b\n",
    "short.csv": "graph,schedule\nchain.json\n",
    "pipe.csv": "graph,schedule\nchain.json,pipe\n",
    "device.csv": "graph,schedule\nchain.json,/dev/zero\n",
}


@pytest.mark.parametrize("name", BAD)
def test_manifests_are_not_trusted(name: str) -> None:
    os.mkfifo("pipe")
    Path(name).write_text(BAD[name])
    check_text(
        "format.named-files" if "/" in BAD[name] or "pipe" in name or "empty" in name else "format.manifest",
        ok(f"validate --manifest {name}", code=2).err,
    )


def test_certificates_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"validate chain.json {FILES[1]} -b 5 --order fixed -o sub/cert.json"
    Path("sub").mkdir()
    ok(line)
    assert "nothing has changed" in ok("verify sub/cert.json").out
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    ok(line)
    first = Path("sub/cert.json").read_bytes()
    ok(line)
    assert Path("sub/cert.json").read_bytes() == first and b"1970-01-01T00:00:01Z" in first

    Path(FILES[1]).write_text(Path(FILES[1]).read_text() + "\n")  # other bytes, same schedule
    (found,) = facts("verify sub/cert.json", code=1)["checks"]
    assert found["verdict"] == "valid" and [change[:26] for change in found["changes"]] == [
        "bytes of the schedule file"
    ]
    write_schedule(Schedule.reference(read_graph("chain.json")), FILES[1])
    shown = ok("verify sub/cert.json", code=1).out
    assert "verdict: valid -> over budget" in shown and "peak: 5 -> 6" in shown
    Path(FILES[1]).unlink()
    assert "no such file" in ok("verify sub/cert.json", code=2).out
    check_text("format.certificate", ok("verify chain.json", code=2).err)
    text = first.decode().replace('"max_computes": null', '"max_computes": "no"')
    Path("sub/cert.json").write_text(text.replace("frugal.json", "reference.json"))
    assert "max_computes" in ok("verify sub/cert.json", code=2).out


def test_many_certificates_are_verified_in_a_table() -> None:
    ok(f"validate chain.json {FILES[0]} {FILES[1]} -b 5 --order fixed -o all.json", code=1)
    shown = ok("verify all.json", code=1).out  # one is over the budget, as certified
    assert "2 of 2 certificates are as recorded." in shown and "over budget" in shown
    write_schedule(Schedule.reference(read_graph("chain.json")), FILES[1])
    shown = ok("verify all.json", code=1).out
    assert f"{FILES[1]}: peak: 5 -> 6" in shown and "1 of 2 certificates are as recorded." in shown
    Path(FILES[0]).unlink()
    shown = ok("verify all.json", code=2).out
    assert "not read" in shown and f"{FILES[0]}: no such file" in shown


def test_certificates_of_python_are_verified() -> None:
    graph = read_graph("chain.json")
    certificate = validate(graph, Schedule.reference(graph), Rules(budget=6))
    certificate.save("plain.json")
    assert "names no graph file" in ok("verify plain.json", code=2).out
    ok(f"verify plain.json chain.json {FILES[0]}")
    certificate.save("cert.json", "chain.json", FILES[0])
    assert facts("verify cert.json")["checks"][0]["changes"] == []
    ok(f"validate unet {FILES[0]} -o zoo.json", code=1)
    assert "unet" in Path("zoo.json").read_text() and "invalid" in ok("verify zoo.json", code=1).out


def test_arguments_in_the_wrong_order() -> None:
    for line in (f"validate {FILES[0]} chain.json", f"layers {FILES[0]} chain.json", "validate chain.json chain.json"):
        check_text("shell.swapped", ok(line, code=2).err)
