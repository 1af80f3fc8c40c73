"""Documentation: Python blocks and commands run, files are well formed, numbers are right."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from _examples import DRAWN, Block, blocks, drawn_names, run_python
from _hooks import numbers_of, split_code, with_formulas
from _notebooks import executed, page_of

from remat.solving.auto import STAGES as AUTO_STAGES
from remat.solving.min_peak_search import STAGES as MIN_PEAK_STAGES
from remat.solving.portfolio import CONDITIONS, Stage

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Seconds for each solve, for any limit on the page.
LIMIT = 1


def commands(text: str) -> list[list[str]]:
    """Return the command lines of a console block, with short time limits."""
    joined = text.replace("\\\n", " ")
    lines = [shlex.split(line[2:], comments=True) for line in joined.splitlines() if line.startswith("$ ")]
    for words in lines:
        assert words[:2] != ["remat", "solve"] or "--time-limit" in words, "pages must limit solves"
        for position, word in enumerate(words[:-1]):
            if word == "--time-limit":
                words[position + 1] = str(min(LIMIT, int(words[position + 1])))
    return lines


def exit_codes(text: str) -> list[int]:
    """Return the exit codes of the command lines of a console block: 0 unless a comment says ``# exit code 1``."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    return [int(said[1]) if (said := re.search(r"# exit code (\d)$", line)) else 0 for line in lines]


def write_example_files(folder: Path) -> None:
    """Write the graph and the schedule of formats.md."""
    texts = (block.text for block in blocks(ROOT / "docs/formats.md") if block.language == "json")
    for name, text in zip(("graph.json", "schedule.json"), texts, strict=True):
        (folder / name).write_text(text)


LANGUAGES = {"python", "console", "text", "json", "toml", "sh", "math"}
#: Packages of extras.
EXTRAS = ("torch", "transformers", "onnx", "jax", "tflite", "executorch")


def extras_of(page: Path, *only: Block) -> list[str]:
    """Return the packages of extras that the Python blocks and commands of a page import, or some of its blocks."""
    chosen = only or tuple(blocks(page))
    python = "\n".join(block.text for block in chosen if block.language == "python")
    imported = set(re.findall(r"^\s*(?:import|from)\s+(?:remat\.)?(\w+)", python, re.MULTILINE))
    if any(words[:2] == ["remat", "capture"] for block in chosen for words in commands(block.text)):
        imported.add("torch")
    return [extra for extra in EXTRAS if extra in imported]


def pages_with(*languages: str) -> list:
    pages = (*PAGES, ROOT / "CONTRIBUTING.md")
    chosen = [page for page in pages if any(block.language in languages for block in blocks(page))]
    return [pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks_of(page)) for page in chosen]


#: Pages whose examples take most of the time; tests of the package have smaller cases of what they show.
LONG = {
    "allocation.md", "auto.md", "batch.md", "bounds/index.md", "compare.md", "configuration.md",
    "formulations/timed-intervals.md", "frontier.md", "gallery.md", "heuristics/checkpointing.md",
    "heuristics/lns.md", "heuristics/lp-rounding.md", "heuristics/transfers.md", "hierarchy/index.md",
    "ordering/index.md", "plots.md", "shell.md", "studies.md", "tutorials/how-far.md", "view.md",
}  # fmt: skip


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    """Mark long pages as slow, and pages that import a framework; the import takes seconds."""
    long = str(page.relative_to(ROOT)).removeprefix("docs/") in LONG
    return [pytest.mark.slow] if long or extras_of(page) else []


def test_extras_of_pages(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nimport numpy\nfrom remat.torch import capture\nimport onnx\n```\n")
    assert extras_of(page) == ["torch", "onnx"]
    page.write_text("import jax\n\n```console\n$ remat capture m:f\n```\n")
    assert extras_of(page) == ["torch"]


def test_all_pages_are_in_the_navigation() -> None:
    named = set(re.findall(r"(?::|-) ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    notebooks = {f"notebooks/{notebook.stem}.md" for notebook in NOTEBOOKS}
    assert named == {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]} | notebooks


def test_blocks_name_their_language() -> None:
    for page in PAGES:
        assert {block.language for block in blocks(page)} <= LANGUAGES, page
        fences = len(re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert fences == 2 * len(list(blocks(page))), f"{page}: a fence without a language, or not closed"


@pytest.mark.parametrize("page", pages_with("python", "console"))
def test_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run all blocks in order, in one namespace and one folder with the files of formats.md.

    A block that begins with the name of a file (.toml, .py) becomes that file. On pages with drawn pictures and in
    tutorials, a text that follows a block has lines that the block prints.
    """
    for extra in extras_of(page):
        pytest.importorskip(extra)
    run_blocks(page, list(blocks(page)), tmp_path, monkeypatch, capsys)


def test_readme_runs_without_frameworks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "README.md"
    chosen = [block for block in blocks(page) if not extras_of(page, block)]
    assert {block.language for block in chosen} >= {"python", "console"}
    run_blocks(page, chosen, tmp_path, monkeypatch, capsys)


def run_blocks(
    page: Path,
    chosen: list[Block],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run blocks of a page in a folder with the files of formats.md."""
    from remat.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_example_files(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    tutorial = page.parent.name == "tutorials"
    printed, shows = "", tutorial or bool(DRAWN.search(page.read_text(encoding="utf-8")))
    for block in chosen:
        if name := re.match(r"# ([\w-]+\.(?:toml|py))\n", block.text):
            (tmp_path / name[1]).write_text(block.text, encoding="utf-8")  # later commands name it
        if block.language == "python":
            printed = run_python(page, block, namespace)
        elif block.language == "text" and shows and printed:
            lines = {line.rstrip() for line in printed.splitlines()}
            assert set(block.text.splitlines()) <= lines, f"{page}, line {block.line}: not printed"
            printed = ""
        elif block.language == "console":
            capsys.readouterr()
            for words, code in zip(commands(block.text), exit_codes(block.text), strict=True):
                if words[0] == "remat":
                    assert main(words[1:]) == code, f"{page}, line {block.line}: {shlex.join(words)}"
                else:
                    assert words[0] in {"make", "pip", "git", "cd"}, f"{page}, line {block.line}: not tested"
            printed = capsys.readouterr().out if tutorial else ""
    assert all((tmp_path / name).stat().st_size for name in drawn_names(page))


def stage_table(stages: tuple[Stage, ...]) -> str:
    """Return a table of stages in Markdown."""
    rows = ["| stage | share | at most | ops up to | condition |", "|---|---|---|---|---|"]
    for stage in stages:
        name = f"`{stage.method}`"
        if stage.method == "turns":
            name += ": " + ", ".join(f"`{each}` {100 * share:g} %" for each, share in stage.options.items())
        caps = [] if stage.seconds is None else [f"{stage.seconds:g} s"]
        caps += [] if stage.seconds_per_op is None else [f"{1000 * stage.seconds_per_op:g} ms per op (or 3 s)"]
        ops = "" if stage.max_ops is None else f"{stage.max_ops:,}"
        words = [f"`{word}`" for word in stage.when] + ["*waits*"] * stage.wait
        rows.append(f"| {name} | {100 * stage.share:g} % | {', '.join(caps)} | {ops} | {', '.join(words)} |")
    return "\n".join(rows)


@pytest.mark.parametrize(("name", "stages"), [("auto", AUTO_STAGES), ("minimize", MIN_PEAK_STAGES)])
def test_tables_of_stages_are_current(name: str, stages: tuple[Stage, ...], request: pytest.FixtureRequest) -> None:
    """`--update-messages` rewrites them."""
    page = ROOT / "docs" / f"{name}.md"
    text, table = page.read_text(encoding="utf-8"), f"\n{stage_table(stages)}\n\n"
    begin, end = (f"<!-- {word}: stages of {name} -->\n" for word in ("begin", "end"))
    current = text.partition(begin)[2].partition(end)[0]
    if request.config.getoption("--update-messages"):
        page.write_text(text.replace(f"{begin}{current}{end}", f"{begin}{table}{end}"), encoding="utf-8")
    else:
        assert current == table, "pytest tests/test_docs.py --update-messages rewrites it"


def test_conditions_of_stages_are_explained() -> None:
    rows = (ROOT / "docs/auto.md").read_text(encoding="utf-8").partition("| condition | holds if |")[2]
    explained = re.findall(r"^\| ([^|]+) \|", rows.partition("\n\n")[0], re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", " ".join(explained))) == set(CONDITIONS)


def test_budget_curve_falls() -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from budget_curve import budget_curve
    finally:
        sys.path.pop(0)
    from remat import layered

    points = budget_curve(layered(16, seed=2), seconds=LIMIT)
    assert [percent for percent, _, _ in points] == [60, 70, 80, 90, 100]
    found = [overhead for _, _, overhead in points if overhead is not None]
    assert len(found) >= 2
    assert found == sorted(found, reverse=True)
    assert found[-1] == 0


def test_make_targets_on_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        assert set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))) <= targets, page


def test_all_commands_are_listed() -> None:
    from remat.cli.shell import root_command

    page = (ROOT / "docs/shell.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `remat ([a-z-]+)", page, re.MULTILINE))
    assert listed == set(root_command().commands)


@pytest.mark.slow
def test_site_loads_nothing_external(tmp_path: Path) -> None:
    """Links may be external."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    subprocess.run(build, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(PAGES) - 1
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?([^\"' >]+)", html)
        loaded += re.findall(
            r"<link\b[^>]*\brel=[\"']?(?:stylesheet|icon|preconnect)[^>]*\bhref=[\"']?([^\"' >]+)", html
        )
        assert loaded
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page
        assert ":class:" not in html, f"{page}: an unread role"


def test_example_files_are_valid(tmp_path: Path) -> None:
    from remat import read_graph, read_schedule, validate

    write_example_files(tmp_path)
    assert validate(read_graph(tmp_path / "graph.json"), read_schedule(tmp_path / "schedule.json")).accepted


@pytest.mark.parametrize("each", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_table_of_the_zoo(each: int) -> None:
    """All rows have a graph; the numbers of each fifth row, or of all, are right."""
    from remat.graphs.zoo import INFERENCE, TRAINING, TRAINING_STEPS, ZOO

    page = (ROOT / "docs/graphs.md").read_text(encoding="utf-8")
    bytes_of = r" ([\d,]+) \| ([\d,]+) \|$"
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| (\d+) \|( [\d,]+ \|)?" + bytes_of, page, re.MULTILINE)
    assert dict(ZOO) == {**TRAINING, **TRAINING_STEPS, **INFERENCE}
    assert [row[0] for row in rows] == list(ZOO)
    for name, ops, edges, macs, *peaks in rows[::each]:
        graph = ZOO[name]()
        numbers = (ops, edges, *peaks)
        assert macs == (f" {graph.base_cost / 1e6:,.0f} |" if name in INFERENCE else ""), name
        facts = (len(graph.ops), graph.num_edges, graph.reference_peak, graph.structural_bound.peak)
        assert tuple(int(number.replace(",", "")) for number in numbers) == facts, name


def test_all_rules_of_the_validator_are_explained() -> None:
    from remat.schedule import Rule

    page = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
    explained = [name for row in re.findall(r"^\| ([a-z, ]+) \|", page, re.MULTILINE) for name in row.split(", ")]
    assert not {rule.value for rule in Rule} - set(explained)


def test_introduction_takes_three_minutes() -> None:
    """At 230 words a minute, without what is folded, to a certified, drawn schedule of a network."""
    page = (ROOT / "docs/introduction.md").read_text(encoding="utf-8")
    assert "$ remat solve unet" in page and "certified" in page and "drawn/unet.svg" in page
    shown = re.sub(r"^\?\?\? .*\n(?:(?:    .*)?\n)*", "", page, flags=re.MULTILINE)
    shown = re.sub(r"```text\n.*?```|\]\([^)]*\)", " ", shown, flags=re.DOTALL)
    assert 400 < len(re.findall(r"[\w%.]*\w[\w%.]*", shown)) <= 3 * 230


def test_equations() -> None:
    """All become MathML without remains of LaTeX, their numbers are unique on a page, and the text cites some."""
    cited = 0
    for page in PAGES[1:]:
        text = page.read_text(encoding="utf-8")
        numbers, parts = numbers_of(text), split_code(text)
        shown = "".join(with_formulas(part, numbers) for part in parts if not re.match(r" *```(?!math)|`[^`]", part))
        if "<math" in shown:
            assert not re.search(r"\\[a-zA-Z]", shown), page
            anchors = re.findall(r'id="(eq-\w+)"', shown)
            assert len(set(anchors)) == len(anchors), page
            cited += len(set(re.findall(r"\(#(eq-\w+)\)", shown)) & set(anchors))
    assert cited >= 20


NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def test_files_of_notebooks_have_no_outputs() -> None:
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        source = nbformat.read(path, as_version=4)
        nbformat.validate(source)
        assert not any(cell.get("outputs") for cell in source.cells), path


@pytest.mark.slow  # `make docs` executes them too
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in a kernel of Jupyter, which shows pictures and tables."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text, pictures = page_of(executed(path), path.stem)
    assert "<table" in text and ("data:image/png" in text or pictures)
    assert all(content.startswith(b"\x89PNG") for content in pictures.values())


def test_drawn_pictures() -> None:
    """Each picture that only the site has is drawn by one page."""
    drawn = [name for page in PAGES[1:] for name in drawn_names(page)]
    shown = set().union(*(DRAWN.findall(page.read_text(encoding="utf-8")) for page in PAGES))
    assert sorted(drawn) == sorted(shown)
