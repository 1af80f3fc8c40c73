"""``remat export`` and ``remat import``."""

import json
from pathlib import Path

import highspy
import pytest
from shell import ok

pytestmark = pytest.mark.usefixtures("folder")
GIVEN = "-b 5 -m checkmate"


def test_solution_comes_back_as_a_schedule(folder: Path) -> None:
    shown = ok(f"export chain.json {GIVEN} -o m.lp")
    assert "m.lp: 172 variables" in shown.out
    assert json.loads((folder / "m.names.json").read_text())["budget"] == 5
    assert (folder / "m.lp").stat().st_mode & 0o777 == (folder / "chain.json").stat().st_mode & 0o777
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel("m.lp")
    solver.run()
    solver.writeSolution("m.sol", 0)
    assert "valid" in ok("import chain.json m.lp m.sol -o s.json").out
    assert "valid" in ok("validate chain.json s.json -b 5").out
    assert "over budget" in ok("import chain.json m.lp m.sol -b 4", code=1).out


def test_file_of_names_is_optional_and_not_trusted(folder: Path) -> None:
    """Without it the options must be given; a class in it is not imported."""
    ok(f"export chain.json {GIVEN} -o m.lp")
    names = folder / "m.names.json"
    about = json.loads(names.read_text())
    assert about["settings"] == {"problem": {"budget": "5"}, "solve": {"method": "checkmate"}}
    (folder / "m.sol").write_text("")
    names.write_text(json.dumps(about | {"settings": {"problem": {"budget": 5}, "solve": {"method": "os:PathLike"}}}))
    assert "os:PathLike" in ok("import chain.json m.lp m.sol", code=2).err
    names.write_text(json.dumps(about | {"settings": []}))
    assert "m.names.json: not the file of names of a model" in ok("import chain.json m.lp m.sol", code=2).err
    names.unlink()
    assert "--method" in ok("import chain.json m.lp m.sol", code=2).err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("export chain.json -b 5 -o m.lp", "--method"),
        ("export chain.json -m checkmate -o m.lp", "--budget"),
        (f"export chain.json {GIVEN} -o m.txt", "a model file ends in .pb"),
        ("export chain.json -b 5 -m greedy -o m.lp", "'greedy' has no model"),
        (f"export chain.json {GIVEN} -o missing/m.lp", "missing"),
        (f"import chain.json m.lp missing.sol {GIVEN}", "missing.sol: no such file"),
        (f"import chain.json m.lp chain.json {GIVEN}", "chain.json: no line has a name of this model"),
    ],
)
def test_mistakes_get_one_line(line: str, words: str) -> None:
    shown = ok(line, code=2)
    assert words in shown.err
    assert shown.err.count("\n") == 1
