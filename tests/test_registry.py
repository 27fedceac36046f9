"""The registry: valid labels, and the errors for a user's file that cannot be loaded."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from compare import cli, registry
from compare.model.op import UsageError
from compare.worker import user_files
from loaded_files import own_registry
from loops import for_each

ROW = """
from compare.registry import implementation


@implementation("vector_add", "cupy.mine", level="naive", {})
def mine(x, y, *, WIDTH=1):
    return x + y
"""


ODD = ["", "mine x\ny", "mine\n", "a/b", "..", "*", "mi?e", "[m]ine", "\x1b[31m", "\U0001f600", "é"]


@for_each("variant", [*ODD, "mine:8", "a|b"])
def test_a_label_that_is_more_than_a_name_is_refused(variant: str) -> None:
    """Tables and terminals would break on it, --only take it for a pattern, or a row for one of --tune."""
    with pytest.raises(UsageError, match="letters, digits and _ behind the dot") as caught:
        registry.implementation("vector_add", f"cupy.{variant}", level="naive")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("label", ["torch.eager2", "triton.My_Kernel", "cupy.0", "library.cub"])
def test_a_label_that_is_a_name_is_taken(label: str) -> None:
    registry.implementation("vector_add", label, level="naive")  # which registers when it decorates


def test_the_command_that_is_advised_shows_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's own folder, which is not the project's, by a path with a space in it."""
    monkeypatch.chdir(tmp_path)
    Path("no level.py").write_text(ROW.replace(', level="naive", {}', ""))
    with pytest.raises(UsageError, match=r"TypeError at line 5: .*'level'\. Fix the file") as caught:
        registry.load("no level.py")
    advised = str(caught.value).partition("Fix the file (")[2].removesuffix(" shows the whole traceback)")
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(["sh", "-c", advised], env=bare, capture_output=True, text=True, check=False)
    assert 'File "' in done.stderr
    assert "TypeError: implementation() missing" in done.stderr


# --------------------------------------------------------------------------- what a file may register

OP = (registry.ROOT / "tests" / "support" / "one_file_op.py").read_text()
REDEFINED = """
from dataclasses import replace

from compare import registry
from compare.model.op import Tolerance

op = registry.get_op("vector_add")
registry.register_op(replace(op, tolerance=lambda case: Tolerance(float("inf"))))
"""
ORACLE = "oracle=lambda x: 2 * x + 1"
INPUTS = "(tensor(case.shape, case, generator, device),)"


def refused(folder: Path, text: str, op: str = "vector_add") -> str:
    """The error for a file that cannot be loaded."""
    file = folder / f"mine_{len([*folder.iterdir()])}.py"  # another has other bytecode
    file.write_text(text)
    with own_registry(), pytest.raises(UsageError, match=rf"--load {file}") as caught:
        user_files.load([str(file)], op)
    return str(caught.value)


WIDTHS = "WIDTH='128': write a tunable's values as (64, 128), each once"


def row(more: str = "", before: str = "", after: str = "") -> str:
    return ROW.format(more).replace(before, after)


def op(before: str, after: str) -> str:
    assert before in OP
    return OP.replace(before, after)


@for_each(
    "text, of, said",
    [
        (row("requires=90"), "", "line 5: cupy.mine: requires=90 is no architecture; write it as 'sm_90'"),
        (row("requires='sm_9x'"), "", "requires='sm_9x' is no architecture"),
        (row("accumulator='fp64'"), "", "'fp64' is none of fp32, int32, fp22, tf32, fp16, bf16"),
        (row("tunable={'WIDTH': '128'}"), "", WIDTHS),
        (row("tunable={'WIDTH': (1, 128.5)}"), "", "each once"),
        (row("tunable={'WIDTH': (1, True)}"), "", "each once"),
        (row("tunable={'WIDTH': (1, 1)}"), "", "each once"),
        (row("tunable={'WIDTH': ()}"), "", "each once"),
        (row("tunable={'BLOCK': (1, 2)}"), "", "BLOCK is tunable, but no keyword-only parameter"),
        (
            row("tunable={'WIDTH': (1, 2)}", "WIDTH=1", "WIDTH=None"),
            "",
            "WIDTH=None is no default of a tunable",
        ),
        (row("", "cupy.mine", "cupy.*"), "", "label 'cupy.*': begin it with one of torch, triton, cupy"),
        # Of these code is counted in files that a user's function has none of.
        (row("", "cupy.mine", "library.mine"), "", "begin the label with one of torch, triton, cupy"),
        (row("", "cupy.mine", "pybind.mine"), "", "begin the label with one of torch, triton, cupy"),
        (row("prepare=lambda x: (x,)"), "", "prepare is for what the project builds itself"),
        (row() * 2, "", "has a cupy.mine already"),
        (row(), "softmax", "it has nothing of softmax, but of vector_add"),
        # Its oracle and its tolerance would be what the file that is judged says.
        (REDEFINED, "", "line 8: register_op(Op(name='...', ...)) has no name"),
        (
            op('name="scale_shift"', 'name="vector_add"'),
            "",
            "the project has an op vector_add already: give yours",
        ),
        (
            op('signature="x[N] -> y[N]"', 'signature="nonsense"'),
            "scale_shift",
            "signature 'nonsense': write one as",
        ),
        (op('signature="x[N] -> y[N]"', "signature=7"), "scale_shift", "signature 7: write one as"),
        (
            op('name="scale_shift"', 'name="scale/shift"'),
            "scale_shift",
            "write its name with letters, digits and _",
        ),
        (
            op("default=case(N=1000)", "default=case(M=1000)"),
            "scale_shift",
            "case M=1000,fp32 is not of its dims, N",
        ),
        (
            op('dtypes=("fp32",)', 'dtypes=("fp16",)'),
            "scale_shift",
            "case N=1000,fp32 is not of its dims, N, and dtypes, fp16",
        ),
        (op('Cost(2 * case["N"]', 'Cost(2 * case["M"]'), "scale_shift", "KeyError at line 25: 'M'"),
        (
            op("tolerance=lambda case: Tolerance(least=2.0)", "tolerance=lambda case: 2.0"),
            "scale_shift",
            "tolerance gives no Tole",
        ),
    ],
    ids=lambda each: each[2],
)
def test_what_a_file_may_not_register(text: str, of: str, said: str, tmp_path: Path) -> None:
    refusal = refused(tmp_path, text, of or "vector_add")
    assert said in refusal
    # Shown only where there is something in it that would help.
    assert ("whole traceback" in refusal) == (said == "KeyError at line 25: 'M'")


@pytest.mark.usefixtures("own_registry")
def test_a_label_stands_for_one_function(tmp_path: Path) -> None:
    """Of two the first would vanish without a word."""
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(ROW.format(""))
    with pytest.raises(
        UsageError, match=r"--load .*two\.py, line 5: .* already, in .*one\.py: give yours another name"
    ):
        user_files.load([str(tmp_path / "one.py"), str(tmp_path / "two.py")])


@pytest.mark.usefixtures("own_registry")
def test_a_file_with_the_op_of_another_s_rows_is_taken_beside_it(tmp_path: Path) -> None:
    """Rows of two ops in one file, one of them a user's own, are right for either."""
    op, rows = tmp_path / "op.py", tmp_path / "rows.py"
    op.write_text(OP)
    rows.write_text(ROW.format("") + ROW.format("").replace("vector_add", "scale_shift"))
    user_files.load([str(op), str(rows)], "vector_add")
    assert [impl.label for impl in registry.implementations("vector_add", ["cupy.mine"])] == ["cupy.mine"]
    assert "scale_shift" not in registry.op_names()


# --------------------------------------------------------------------------- ops of a user's

ANOTHER = """
registry.register_op(replace(op, name="another"))
registry.register_op.in_the_judge = True
"""


@pytest.mark.usefixtures("own_registry")
def test_a_file_with_an_op_that_is_not_asked_for_is_not_loaded_by_the_judge(tmp_path: Path) -> None:
    """It could do there what it likes to the rows of the op that is."""
    file = tmp_path / "another.py"
    file.write_text("\n".join(REDEFINED.splitlines()[:-1]) + ANOTHER + ROW.format(""))
    user_files.load([str(file)], "vector_add")
    assert not hasattr(registry.register_op, "in_the_judge")
    assert "another" not in registry.op_names()
    (mine,) = registry.implementations("vector_add", ["cupy.mine"])
    assert mine.user_file == file
    (tmp_path / "more.py").write_text(file.read_text())
    with pytest.raises(UsageError, match="has an op another already"):
        user_files.load([str(file), str(tmp_path / "more.py")], "another")


@pytest.mark.usefixtures("own_registry")
def test_all_are_a_file_s_own_ops_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        OP.replace("torch.eager", "torch.mine", 1).replace(
            "register_op(\n    Op(", "register_op(\n    Op(\n        baseline='torch.mine',"
        )
    )
    with mock.patch("compare.run.run", side_effect=UsageError("begun")) as run:
        assert cli.main(["all", "--load", str(file), "--only", "torch.mine", "--device", "cpu"]) == cli.USAGE
    assert run.call_args.args[0].name == "scale_shift"
    assert "begun" in capsys.readouterr().err


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            ORACLE,
            "oracle=lambda x: x.nothing",
            "--load {}: AttributeError at line 24: .*'nothing'.*Fix the op",
        ),
        (INPUTS, "1 / 0", "--load {}: ZeroDivisionError at line 23.*Fix the op"),
        (ORACLE, "oracle=lambda x: None", "scale_shift: its oracle returned None, not a tensor"),
        (
            INPUTS,
            INPUTS.removeprefix("(").removesuffix(",)"),
            "scale_shift: make_inputs returned a Tensor, not a tuple of tensors",
        ),
    ],
)
def test_what_an_op_raises_or_gives_is_the_op_s(
    before: str, after: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not an error of the tool's, which would have the user report it."""
    assert before in OP
    file = tmp_path / "mine.py"
    file.write_text(OP.replace(before, after))
    assert cli.main(["scale_shift", "--load", str(file), "--device", "cpu", "--only", "torch.*"]) == cli.USAGE
    assert re.search(said.format(file), capsys.readouterr().err)


@pytest.mark.usefixtures("own_registry")
def test_an_op_has_no_command_s_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OP.replace('"scale_shift"', '"doctor"'))
    assert cli.main(["list", "--load", str(file), "--device", "cpu"]) == cli.USAGE
    assert "doctor is a command, so no op can have this name" in capsys.readouterr().err


def test_cuda_names_both_ways_to_launch_a_kernel() -> None:
    labels = {impl.label for impl in registry.implementations("vector_add", ["cuda.s*", "cuda.vectorized"])}
    assert labels == {
        f"{route}.{kernel}" for route in ("cupy", "pybind") for kernel in ("scalar", "vectorized")
    }


def test_implementations_register_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = registry.implementations("softmax")
    monkeypatch.setattr("importlib.import_module", mock.Mock(side_effect=AssertionError("imported again")))
    assert registry.implementations("softmax") == before
