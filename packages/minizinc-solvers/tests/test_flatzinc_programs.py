"""The programs as run by MiniZinc: options, output, deadlines and signals."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from subprocess import PIPE, CompletedProcess, Popen

import psutil
import pytest

from minizinc_solvers import __version__
from minizinc_solvers.registration import SHARE, environment_folder
from minizinc_solvers.registration import run as register

CPSAT = [sys.executable, "-P", "-m", "minizinc_solvers.cpsat"]
HIGHS = [sys.executable, "-P", "-m", "minizinc_solvers.highs"]
both = pytest.mark.parametrize("program", [CPSAT, HIGHS], ids=["cpsat", "highs"])

KNAPSACK = """var 0..9: a :: output_var; var 0..9: b :: output_var; var 0..99: gain :: output_var;
array [1..2] of var int: both :: output_array([1..1,1..2]) = [a,b];
constraint int_lin_le([3,4],[a,b],17);
constraint int_lin_eq([4,5,-1],[a,b,gain],0);
solve maximize gain;
"""


#: Imports a program once, which takes half a second, and runs it in a fork for each line of arguments.
FORKS = """
import importlib, json, os, sys
module, *other = [importlib.import_module(f"minizinc_solvers.{name}") for name in sys.argv[1:]]
for line in sys.stdin:
    arguments, *files = json.loads(line)
    child = os.fork()
    if not child:
        for number, file in enumerate(files, 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        module.run(arguments)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


servers = {}


def forks(module):
    if module not in servers:
        modules = [module, "cpsat_engine", "cpsat_model", "cpsat_translate"] if module == "cpsat" else [module]
        servers[module] = Popen([sys.executable, "-P", "-c", FORKS, *modules], stdin=PIPE, stdout=PIPE, text=True)
    return servers[module]


@pytest.fixture(autouse=True, scope="module")
def no_forks_left():
    yield
    while servers:
        with servers.popitem()[1]:  # closes its input and waits
            pass


def run(program, text, tmp_path, *options):
    path, out, err = (tmp_path / name for name in ("model.fzn", "out", "err"))
    path.write_text(text)
    if sys.platform != "linux":
        return subprocess.run([*program, *options, path], capture_output=True, text=True, timeout=60, check=False)
    server = forks(program[-1].rpartition(".")[2])
    server.stdin.write(json.dumps([[*options, str(path)], str(out), str(err)]) + "\n")
    server.stdin.flush()
    return CompletedProcess(program, int(server.stdout.readline()), out.read_text(), err.read_text())


def hard(size: int) -> str:
    """Return a knapsack of many constraints: solutions are easy to find, a proof is out of reach."""
    lines, state = [], 1
    lines += [f"var 0..1: x{k} :: output_var;" for k in range(size)]
    lines.append(f"var 0..{200 * size}: gain :: output_var;")
    names = ",".join(f"x{k}" for k in range(size))

    def weights() -> str:
        nonlocal state
        result = []
        for _ in range(size):
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            result.append(str(100 + (state >> 8) % 97))
        return ",".join(result)

    lines += [f"constraint int_lin_le([{weights()}],[{names}],{37 * size});" for _ in range(25)]
    lines.append(f"constraint int_lin_eq([{weights()},-1],[{names},gain],0);")
    return "\n".join(lines) + "\nsolve maximize gain;\n"


def statistics(output: str) -> list[dict[str, str]]:
    """Return the blocks of statistics."""
    blocks = re.findall(r"((?:%%%mzn-stat: .*\n)+)%%%mzn-stat-end\n", output)
    assert "".join(blocks).count("\n") == output.count("%%%mzn-stat:")
    return [dict(line.split(": ")[1].split("=") for line in block.splitlines()) for block in blocks]


@both
def test_optimum(program, tmp_path):
    done = run(program, KNAPSACK, tmp_path)
    assert done.stdout == "a = 3;\nb = 2;\ngain = 22;\nboth = array2d(1..1, 1..2, [3, 2]);\n----------\n==========\n"
    assert (done.returncode, done.stderr) == (0, "")


@both
def test_statistics_with_every_solution(program, tmp_path):
    done = run(program, KNAPSACK, tmp_path, "-s", "-i", "-p", "1", "-r", "7", "-f", "-t", "60000")
    blocks = statistics(done.stdout)
    assert blocks[-1]["objective"] == blocks[-1]["objectiveBound"] == "22"
    assert int(blocks[-1]["nSolutions"]) == done.stdout.count("----------") == done.stdout.count("gain = ")
    gains = [int(gain) for gain in re.findall(r"gain = (\d+)", done.stdout)]
    assert gains == sorted(set(gains)) and gains[-1] == 22
    assert all(int(b["objectiveBound"]) >= 22 for b in blocks if "objectiveBound" in b)
    assert 0 < float(blocks[-1]["solveTime"]) < 60


@both
def test_minimum(program, tmp_path):
    done = run(program, "var -5..5: x :: output_var; constraint int_le(-3, x); solve minimize x;", tmp_path, "-s")
    assert "x = -3;\n----------\n==========\n" in done.stdout
    assert statistics(done.stdout)[-1]["objectiveBound"] == "-3"


@both
def test_infeasible(program, tmp_path):
    done = run(program, "var 0..1: x; constraint int_le(2, x); solve minimize x;", tmp_path, "-s")
    assert done.stdout.startswith("=====UNSATISFIABLE=====\n") and done.returncode == 0
    assert "objective" not in statistics(done.stdout)[-1]


@both
@pytest.mark.parametrize("domain", ["{}", "2..1"])
def test_empty_domain(program, domain, tmp_path):
    assert run(program, f"var {domain}: x; solve satisfy;", tmp_path).stdout == "=====UNSATISFIABLE=====\n"


@both
def test_single_solution_without_proof(program, tmp_path):
    done = run(program, "var {1,4}: x :: output_var; var bool: b :: output_var; solve satisfy;", tmp_path)
    assert re.fullmatch(r"x = [14];\nb = (true|false);\n----------\n", done.stdout)


@both
def test_empty_and_constant_models(program, tmp_path):
    assert run(program, "solve satisfy;", tmp_path).stdout == "----------\n"
    assert run(program, "constraint int_le(2,1); solve satisfy;", tmp_path).stdout == "=====UNSATISFIABLE=====\n"
    text = "array [1..2] of var int: a :: output_array([1..2]) = [3,4]; solve minimize 7;"
    assert run(program, text, tmp_path).stdout == "a = array1d(1..2, [3, 4]);\n----------\n==========\n"


def test_all_solutions(tmp_path):
    text = "var {1,4}: x :: output_var; var bool: b :: output_var; var 0..9: hidden; solve satisfy;"
    done = run(CPSAT, text, tmp_path, "-a", "-s")
    assert done.stdout.count("----------") == 4 and "----------\n==========\n" in done.stdout
    assert statistics(done.stdout)[-1]["nSolutions"] == "4"
    done = run(CPSAT, text, tmp_path, "-n", "3")
    assert done.stdout.count("----------") == 3 and "==========" not in done.stdout


def test_reals(tmp_path):
    text = (
        "var 0.0..4.0: x :: output_var; var 0..3: k :: output_var; var float: z :: output_var;"
        "constraint float_lin_le([2.0,1.0],[x,x],4.5); var float: y; constraint int2float(k, y);"
        "constraint float_lin_eq([1.0,0.5,-1.0],[x,y,z],0.0); solve maximize z;"
    )
    done = run(HIGHS, text, tmp_path, "-s")
    assert done.stdout.endswith("%%%mzn-stat-end\n") and "k = 3;" in done.stdout and "==========" in done.stdout
    last = statistics(done.stdout)[-1]
    assert float(last["objective"]) == pytest.approx(3.0) and float(last["objectiveBound"]) == pytest.approx(3.0)


def test_unbounded(tmp_path):
    done = run(HIGHS, "var 0.0..1.0: x; var float: y; constraint float_le(x, y); solve maximize y;", tmp_path)
    assert done.stdout == "=====UNBOUNDED=====\n"


@pytest.mark.slow
@both
def test_no_proof_with_unbounded_variables(program, tmp_path):
    text = "var int: x :: output_var; var int: y; constraint int_lin_le([1,-1],[x,y],3); solve maximize x;"
    done = run(program, text, tmp_path, "-s")
    assert "==========" not in done.stdout and "objectiveBound" not in done.stdout
    assert "has no bounds" in done.stderr
    impossible = text.replace("3)", "3); constraint int_lin_le([-1,1],[x,y],-4)")
    assert run(program, impossible, tmp_path).stdout == "=====UNKNOWN=====\n"


@pytest.mark.parametrize(
    ("program", "text", "problem"),
    [
        (CPSAT, "var 0.0..1.0: x; solve satisfy;", "variable 'x' is a float"),
        (CPSAT, "var 0..1: x;\nconstraint float_le(x, 1.0); solve satisfy;", "line 2: constraint 'float_le' is about"),
        (CPSAT, "var 0..1: x;\nconstraint what(x); solve satisfy;", "line 2: constraint 'what' is not supported"),
        (CPSAT, "var 0..1: x; constraint int_eq(x); solve satisfy;", "constraint 'int_eq' has 1 arguments"),
        (CPSAT, "var 0..1: x; constraint int_eq(x, [x]); solve satisfy;", "has an array of 1 where a whole number"),
        (CPSAT, "var 0..9: x; constraint bool_or(x, true, true); solve satisfy;", "variable 'x' where a truth value"),
        (CPSAT, "constraint remat_table_int([1,2],[1,2,3]); solve satisfy;", "has 3 values, which are not rows of 2"),
        (HIGHS, "var 0..1: x;\nconstraint int_times(x, x, x); solve satisfy;", "line 2: constraint 'int_times' is not"),
        (
            HIGHS,
            "var 0..1: x; constraint int_lin_le([x],[x],1); solve satisfy;",
            "'x' where a constant number",
        ),
        (HIGHS, "var 0..1: x; constraint int_le(x, 1..2); solve satisfy;", "has a set where a number belongs"),
        (HIGHS, "var set of 0..1: x; solve satisfy;", "model.fzn: line 1: set variables are not supported"),
    ],
)
def test_unsupported_models_are_one_line(program, text, problem, tmp_path):
    done = run(program, text, tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert problem in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("fzn-")


@both
def test_no_file(program, tmp_path):
    done = subprocess.run([*program, tmp_path / "none.fzn"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no such file" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
@both
def test_deadline_keeps_the_best(program, tmp_path):
    for seconds in (1.5, 6):  # a busy machine may need longer
        started = time.monotonic()
        done = run(program, hard(150), tmp_path, "-t", f"{1000 * seconds:.0f}", "-s")
        if "----------" in done.stdout:
            break
    assert time.monotonic() - started < seconds + 1 + 3  # grace, and start of Python on a busy machine
    assert done.stdout.count("----------") == 1 and "==========" not in done.stdout
    last = statistics(done.stdout)[-1]
    assert int(last["objective"]) <= int(last["objectiveBound"])
    assert f"gain = {last['objective']};" in done.stdout and done.returncode == 0


@both
def test_deadline_before_a_solution(program, tmp_path):
    assert run(program, KNAPSACK, tmp_path, "-t", "1").stdout == "=====UNKNOWN=====\n"


@both
@pytest.mark.parametrize(
    ("stream", "number"),
    [
        (True, signal.SIGTERM),
        (False, signal.SIGINT),
        pytest.param(True, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(False, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_signal_keeps_the_best_solution(program, number, stream, tmp_path):
    path = tmp_path / "model.fzn"
    path.write_text(hard(150))
    options = ["-s", "-i"] if stream else ["-s"]
    process = subprocess.Popen([*program, *options, path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        head = ""
        for line in process.stdout:  # until a solution is found
            head += line
            if stream and line == "----------\n":
                break
            if not stream and line == "%%%mzn-stat-end\n" and statistics(head)[-1].get("objective"):
                break
        signalled = time.monotonic()
        process.send_signal(number)
        killer = threading.Timer(10, process.kill)
        killer.start()
        rest = process.stdout.read()  # communicate() would lose buffered output
        process.wait()
        killer.cancel()
        assert time.monotonic() - signalled < 4
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    output = head + rest
    assert "==========" not in output and output.endswith("%%%mzn-stat-end\n")
    last = statistics(output)[-1]
    assert re.findall(r"gain = (\d+)", output)[-1] == last["objective"]
    assert output.count("----------") == (int(last["nSolutions"]) if stream else 1)


def check_configurations(folder, tmp_path):
    """Assert that every configuration names an executable program and an existing library."""
    path = tmp_path / "model.fzn"
    path.write_text(KNAPSACK)
    for name in ("cp-sat", "highs"):
        configuration = json.loads((folder / f"remat-{name}.msc").read_text())
        assert configuration["id"] == f"org.remat.{name}"
        assert configuration["version"] == __version__
        library = configuration["mznlib"]
        assert library == "-Glinear" or (folder / library / "redefinitions.mzn").is_file()
        done = subprocess.run([folder / configuration["executable"], path], capture_output=True, text=True, check=False)
        assert "gain = 22;" in done.stdout


def test_configurations_of_the_environment(tmp_path, capsys):
    register(["path"])
    assert capsys.readouterr().out == f"{environment_folder()}\n"
    check_configurations(environment_folder(), tmp_path)
    copied = {path.name: path.read_text() for path in environment_folder().parent.glob("remat-*/*")}
    assert copied == {path.name: path.read_text() for path in SHARE.glob("remat-*/*")}, "install the package again"


@pytest.mark.slow
def test_installation_for_a_user(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".minizinc" / "solvers"
    register(["install"])
    files = [str(folder / f"remat-{name}.msc") for name in ("cp-sat", "highs")]
    assert capsys.readouterr().out.splitlines() == files
    check_configurations(folder, tmp_path)
    if minizinc := shutil.which("minizinc"):
        listed = subprocess.run([minizinc, "--solvers"], capture_output=True, text=True, check=True).stdout
        assert "org.remat.cp-sat" in listed and "org.remat.highs" in listed
    register(["uninstall"])
    assert capsys.readouterr().out.splitlines() == files
    assert not list(folder.iterdir())
    register(["uninstall"])
    assert capsys.readouterr().out == ""


def test_unwritable_folder_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / ".minizinc").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        register(["install"])
    assert capsys.readouterr().err == f"minizinc-solvers: error: {tmp_path}/.minizinc/solvers: Not a directory\n"


def test_pandas_is_not_loaded():
    """OR-Tools' modelling layer imports it, which takes half a second per run."""
    code = "import sys, minizinc_solvers.cpsat_model; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes as Linux has them")
@pytest.mark.parametrize("program", [CPSAT, pytest.param(HIGHS, marks=pytest.mark.slow)], ids=["cpsat", "highs"])
def test_ends_when_its_parent_is_killed(program, tmp_path):
    """A killed driver cannot stop its children, so the program checks its parent."""
    path = tmp_path / "model.fzn"
    path.write_text(hard(150))
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$@" & wait', "sh", *map(str, program), "-i", str(path)], stdout=subprocess.PIPE, text=True
    )
    assert shell.stdout is not None
    for line in shell.stdout:
        if line == "----------\n":
            break
    (child,) = psutil.Process(shell.pid).children()
    shell.kill()
    shell.wait()
    try:
        child.wait(5)  # raises psutil.TimeoutExpired if it continues
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
        shell.stdout.close()
