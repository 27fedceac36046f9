"""What a command refuses: one clear line, before anything is run or written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import made_up
from compare.records import archive
from compare.registry import ROOT
from loops import for_each

Complaint = Callable[..., str]

MISTAKES = [
    # which command, and which arguments it takes
    ("sofmax", "did you mean softmax"),
    ("softmax mine.py", "only 'diff' takes files"),
    ("list --json out.json", "--json goes with an op; leave it out of 'list'"),
    ("list --case=N=4", "--case goes with an op"),
    ("doctor --device cpu", "--device goes with an op"),
    ("diff old.json new.json --case N=4", "--case goes with an op"),
    ("diff -v old.json new.json", "--verbose goes with an op"),
    ("map --sweep", "--sweep goes with an op; leave it out of 'map'"),
    ("--calibrate list", "--calibrate: 'list' takes no such argument"),
    ("softmax --calibrate", "--calibrate: a comparison takes no such argument; python -m compare --help"),
    ("list sofmax", "no op 'sofmax': did you mean softmax"),
    ("list --load mine.py softmax -v", "--verbose goes with an op; leave it out of 'list'"),
    ("doctor --nonsense", "--nonsense: 'doctor' takes no such argument"),
    # words that cannot be meant
    ("map '' --all", "argument 2 is empty"),
    ("pipeline softmax --stage ''", "argument 4 is empty"),
    ("aot softmax --out=", "argument 3 is empty"),
    ("softmax --load a\x1b[2Jb.py", "argument 3.*cannot be printed"),
    ("softmax --load \udcff.py", "argument 3.*cannot be printed"),
    ("softmax --arch sm_" + "7" * 5000, "argument 3 has 5003 characters"),
    # a comparison
    ("softmax --case M=4", "N is missing"),
    ("softmax --only trition.*", "did you mean triton"),
    ("all --only nothing.*", "no implementation"),
    ("softmax --arch 90", "reads like sm_90"),
    ("softmax --arch sm_7777", "reads like sm_90"),
    ("softmax --arch sm_75a", "reads like sm_90"),
    ("softmax --arch sm_\uff17\uff15", "reads like sm_90"),
    ("softmax --arch sm_70", "sm_75"),
    ("softmax --device tpu", "auto, cpu, cuda"),
    ("softmax --device cuda:99", "cuda"),
    ("softmax --budget 0", "above 0"),
    ("softmax --budget nan", "above 0"),
    ("softmax --load nowhere.py", "nowhere.py cannot be read: No such file"),
    ("softmax --load RAISES --own-code /nowhere", "/nowhere: there is no such folder"),
    ("softmax --own-code /tmp", "--own-code goes with --load"),
    ("softmax --load RAISES", "SyntaxError at line 2"),
    ("softmax --device cpu --record", "needs a GPU"),
    ("all --device cpu --record --cluster local", "--record needs a GPU"),
    ("softmax --json no/such/folder/out.json", "no directory"),
    ("softmax --csv .", "is a directory"),
    ("softmax --json same --csv ./same", "--json and --csv name the same file"),
    ("all --case N=4", "belongs to one op"),
    ("softmax --timeout 0", "above 0"),
    ("softmax --timeout nan", "above 0"),
    ("softmax --timeout 1e7", "a day, 86400, at most"),
    (f"softmax --seed {1 << 63}", "at most 63 bits"),
    ("histogram --case N=0,SKEW=0 --case N=101,SKEW=101", "SKEW=101 of 100"),
    # --crossover
    ("softmax --crossover K", "M, N"),
    ("all --crossover N", "one op"),
    ("softmax --crossover N --sweep", "leave out --sweep"),
    ("softmax --sweep shapes", "--sweep shapes: softmax lists none"),
    ("softmax --crossover N --record", "leave out --record"),
    ("softmax --crossover N --matched", "leave out --matched"),
    ("softmax --crossover N --case M=1,N=1 --case M=1,N=2", "second --case"),
    ("softmax --crossover N --budget 0", "above 0"),
    ("reduce_sum --crossover N --device cpu --csv out.csv", "--markdown has the table"),
    # diff
    ("diff", "diff takes two files or more"),
    ("diff a.json", "diff takes two files or more"),
    ("diff a.json b.json", "a.json cannot be read"),
    ("diff PROJECT/README.md PROJECT/README.md", "README.md is damaged, or not written by"),
    # map
    ("map nosuch --records RECORDS", "no op on record 'nosuch'"),
    ("map softmx --records RECORDS", "did you mean softmax"),
    ("map --only cupy.nosuch --records RECORDS", "hold no times of that"),
    ("map --records /proc/self/mem", "mem cannot be read: Input/output error"),
    ("map --plot map.jpg", "ends in .png or .svg"),
    ("map --json /nowhere/at/all.json", "no directory"),
    # show
    ("show sofmax --records RECORDS", r"no op 'sofmax': did you mean softmax\?"),
    ("show transpose --records RECORDS", "nothing is recorded of transpose: on a machine with a GPU, run"),
    ("show softmax --case M=2,N=1024 --records RECORDS", "'M=2,N=1024,fp32': did you mean M=1,N=1024,fp32"),
    ("show softmax --case Q=1 --records RECORDS", "'Q' is no dimension"),
    ("show softmax --only triton.onlin --records RECORDS", "did you mean triton.online"),
    ("show softmax --only rust.* --records RECORDS", "there are torch.naive"),
    ("show all --case M=1", "--case goes with one op"),
    ("show softmax --html /no/such/folder.html", "there is no directory /no/such"),
    ("show softmax --case M=2,N=8,fp32 --only triton.* --records RECORDS", "is on record on M=2,N=8,fp32"),
    ("show softmax --records RECORDS OTHER", "of 2 devices"),
    # new-op
    ("new-op", "new-op takes a name"),
    ("new-op softmax --into .", "there is such an op already"),
    *((f"new-op {name} --into .", "lower-case letters, digits and _") for name in ("my-op", "3d", "Cubed")),
    ("new-op lambda --into .", "no word of Python's"),
    *((f"new-op {name} --into .", "this is a command") for name in ("doctor", "all")),
    *((f"new-op {name} --into .", "a Python module has that name") for name in ("torch", "sys")),
    # labs
    ("lab start 01", "lab start: got 01; write lab start LAB DIR"),
    ("lab start 77 x", "no lab '77'"),
    ("lab check /nowhere", "/nowhere: there is no such folder"),
    ("lab hint 01 99", "hints 1 to 6, not '99'"),
    ("lab hint 01 00099", "hints 1 to 6"),
    ("lab hint 01 first", "not 'first'"),
    ("lab list --seed 3", "--seed goes with an op"),
    ("predict", "predict takes an op"),
    ("predict softmx", "did you mean softmax"),
    ("predict softmax --answers /nowhere", "/nowhere cannot be read"),
    ("predict softmax --device tpu", "tpu"),
    ("predict softmax --answers UNKNOWN", "speed is no prediction; there are fastest, binding, speedup"),
    ("predict softmax --answers NUMBER", "got 'lots', expected a number"),
    ("grade", "grade takes a folder"),
    ("grade /nowhere", "/nowhere: there is no such folder"),
    ("grade /tmp --similar --against /nowhere", "/nowhere: there is no such folder"),
    ("grade /tmp --against /tmp", "--against goes with --similar"),
    ("grade /tmp --feedback RAISES", r"compare: \S+mine.py cannot be written"),
    ("grade /tmp --jobs 0", "--jobs 0: give a number from 1"),
    ("grade /tmp --csv /nowhere/x.csv", "there is no directory /nowhere"),
    ("grade /tmp --rubric /nowhere", "/nowhere cannot be read"),
    # --tune
    ("vector_add --tune BLOCKSIZE", r"BLOCK_SIZE of triton\.blocked"),
    ("all --tune BLOCK_SIZE", "one op"),
    ("vector_add --tune BLOCK_SIZE --matched", "give one of them"),
    ("vector_add --tune BLOCK_SIZE --crossover N", "leave out --tune"),
    # pipeline, aot
    ("pipeline nothing_add", "no op"),
    ("pipeline vector_add --timeout 0", "above 0"),
    ("pipeline vector_add --timeout 1e20", "a day, 86400, at most"),
    ("pipeline vector_add --arch sm_99", "'sm_99' is not known"),
    ("pipeline vector_add --arch hopper", "reads like sm_90"),
    ("pipeline vector_add --passes --stage ptx", "give one"),
    ("pipeline vector_add --json /nowhere/at/all.json", "no directory"),
    ("pipeline vector_add --html .", "is a directory"),
    ("pipeline vector_add --html one.file --json one.file", "give each its own"),
    ("aot vector_ad --out .", "did you mean vector_add"),
    ("aot vector_add --out . --arch sm_70", "'sm_70' is not known; there are sm_75"),
    ("aot vector_add --out . --only torch.*", "kernels cannot be compiled here"),
    ("aot vector_add --out . --case M=3", "'M' is no dimension"),
    ("aot vector_add --out RAISES", "mine.py cannot be written"),
    ("aot vector_add --out . --json .", "is a directory"),
]


@pytest.fixture
def names(tmp_path: Path) -> dict[str, str]:
    """By the word that stands for it: records of one device, a file of another, and one that is no Python."""
    some = made_up.rows({label: made_up.MEDIANS_US[label] for label in ("torch.eager", "cupy.online")})
    cases = (made_up.case(), made_up.case("M=1,N=1024,fp32"), made_up.case("M=2,N=8,fp32", some))
    file = archive.record(made_up.comparison(*cases), tmp_path)
    other = made_up.comparison(environment=replace(made_up.H100, device="NVIDIA T4"))
    raises, unknown, number = (tmp_path / name for name in ("mine.py", "unknown.toml", "number.toml"))
    raises.write_text("x = 1\nx /\n")
    unknown.write_text("speed = 3")
    number.write_text('registers = "lots"')
    return {
        "RECORDS": str(file.parent),
        "OTHER": str(archive.record(other, tmp_path)),
        "RAISES": str(raises),
        "UNKNOWN": str(unknown),
        "NUMBER": str(number),
        "PROJECT": str(ROOT),
    }


@for_each("command, says", MISTAKES, ids=lambda case: case[0][:80])
@pytest.mark.usefixtures("decorated")
def test_a_mistake_is_one_clear_line(
    command: str,
    says: str,
    names: dict[str, str],
    complaint: Complaint,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("compare.run.run", lambda *_: pytest.fail("it was run"))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.glob("*"))
    for name, path in names.items():
        command = command.replace(name, path)
    text = complaint(*shlex.split(command))
    assert re.search(says, text)
    assert len(text) < 500
    assert sorted(set(tmp_path.glob("*")) - {tmp_path / "__pycache__"}) == before
