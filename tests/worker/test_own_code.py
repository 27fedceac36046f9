"""A lab's hand-in neither names nor sees the project's kernels and other hand-ins."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from compare import registry
from compare.labs import lab as labs
from compare.model.op import UsageError
from compare.registry import ROOT
from compare.sandbox import isolation
from compare.sandbox.isolation import Isolation
from compare.worker import messages, own_code, user_files
from compare.worker.process import Raised, Worker
from loops import for_each

FOUND = isolation.found()


@for_each(
    "text, says",
    [
        (
            "from triton_impl.softmax import onepass",
            "it imports triton_impl.softmax.onepass (line 1): hand in",
        ),
        ("import cuda_impl.launches.softmax as s", "it imports cuda_impl.launches.softmax"),
        ("def f():\n    from torch_impl import softmax", "torch_impl.softmax (line 2)"),
        ("from ops.softmax import OP", "ops.softmax.OP"),
        ("from compare.checking import reference", "compare.checking.reference"),
        ("SOURCE = '''\n#include \"softmax.cuh\"\n'''", "the project's softmax.cuh"),
        ("SOURCE = '# include <softmax/02_onepass.cuh>'", "the project's softmax/02_onepass.cuh"),
        ("kernel('softmax', 'softmax_onepass_kernel<float>', x.device)", "the project's softmax.cuh"),
        ("loader.kernel('softmax', 'f', x.device)", "the project's softmax.cuh"),
    ],
)
def test_a_text_that_names_the_projects_code_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        own_code.check(ast.walk(ast.parse(text)))
    assert says in str(refused.value)
    assert own_code.OWN_CODE in str(refused.value)


def test_every_starter_is_taken() -> None:
    for lab in labs.every():
        for starter in lab.starters:
            own_code.check(ast.walk(ast.parse(starter.read_text())))


@pytest.mark.usefixtures("own_registry")
def test_only_hand_ins_are_read_so(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from compare.registry import implementation\nfrom triton_impl.softmax import onepass\n"
        "@implementation('softmax', 'triton.mine', level='tiled')\ndef mine(x):\n    return onepass(x)\n"
    )
    user_files.load([str(file)], "softmax")
    (mine,) = registry.implementations("softmax", ["triton.mine"])
    assert not mine.hidden
    with pytest.raises(UsageError, match=own_code.OWN_CODE):
        user_files.load([str(file)], "softmax", others=tmp_path)


LOOKS = """
import importlib, os
from pathlib import Path

def tried(what):
    try:
        return what() or "seen"
    except Exception as error:
        return f"{type(error).__name__} {error}"

ROOT, CLASS, OWN = map(Path, (%r, %r, %r))
BUILDS = Path(os.environ["COMPARE_CACHE_SHARED"])
found = {
    "kernel": tried(lambda: (ROOT / "triton_impl" / "softmax.py").read_text()),
    "relative": tried(lambda: open("triton_impl/softmax.py").read()),
    "header": tried(lambda: (ROOT / "cuda_impl/kernels/softmax/02_onepass.cuh").read_text()),
    "solution": tried(lambda: (ROOT / "labs/solutions/04_one_pass_softmax/answers.toml").read_text()),
    "git": tried(lambda: (ROOT / "pyproject.toml").read_text()),
    "classmate": tried(lambda: (CLASS / "bob" / "mine.py").read_text()),
    "zip": tried(lambda: (CLASS / "carol.zip").read_text()),
    "build": tried(lambda: (BUILDS / "softmax_kernel.so").read_text()),
    "runtime": tried(lambda: next(BUILDS.glob("libhost-*.so")).read_bytes() and "seen"),
    "import": tried(lambda: importlib.import_module("triton_impl" + ".softmax")),
    "own": tried(lambda: (OWN / "mine.py").read_text() and "seen"),
    "loader": tried(lambda: importlib.import_module("cuda_impl.loader") and "seen"),
    "mma": tried(lambda: (ROOT / "cuda_impl/kernels/tensor_core.cuh").read_text() and "seen"),
    "op": tried(lambda: importlib.import_module("ops.softmax") and "seen"),
}
raise ValueError(" ".join(sorted(name for name, came in found.items() if "seen" in came)) + found["import"])
"""
MECHANISMS = [
    pytest.param(FOUND, id="all"),
    pytest.param(
        Isolation(landlock=FOUND.landlock, seccomp=True),
        id="landlock",
        marks=pytest.mark.skipif(not FOUND.landlock, reason="no Landlock here"),
    ),
    pytest.param(
        Isolation(namespaces=True, seccomp=True),
        id="namespaces",
        marks=pytest.mark.skipif(not FOUND.namespaces, reason="no namespaces here"),
    ),
]


def test_of_an_installed_copy_the_solutions_are_hidden_and_libraries_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(own_code, "IS_CHECKOUT", False)
    monkeypatch.setattr(own_code, "DATA", tmp_path / "data")
    hidden = dict(own_code.hidden(tmp_path / "alice" / "mine.py", tmp_path / "others"))
    assert (hidden[str(tmp_path / "data")], hidden[str(ROOT / "torch_impl")]) == ((), ())
    assert str(ROOT) not in hidden


@pytest.mark.thorough
@pytest.mark.parametrize("own", ["alice", "alice/lab04"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_worker_sees_its_own_files_only(
    mechanism: Isolation, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache of builds"
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(cache))
    monkeypatch.setattr(isolation, "found", lambda: mechanism)
    monkeypatch.chdir(ROOT)
    file, bob = tmp_path / own / "mine.py", tmp_path / "bob" / "mine.py"
    for path in (file, bob, tmp_path / "carol.zip"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LOOKS % (str(ROOT), str(tmp_path), str(file.parent)))
    hidden = own_code.hidden(file, tmp_path)
    (cache / "softmax_kernel.so").write_text("a build of the project's")
    worker = Worker("triton.mine", torch.device("cpu"), 60.0, isolated=True, hidden=hidden)
    try:
        worker.ask(messages.Setup("cpu", worker.environment, ("triton_impl",)), "starting")
        with pytest.raises((Raised, UsageError)) as raised:
            worker.ask(messages.Load((str(file),), own_code=True), "loading its file")
    finally:
        worker.close()
    said, shared = str(raised.value), "" if isolation.has_gpu() else " runtime"
    assert "ValueError at line" in said
    assert f": loader mma op own{shared}" in said.replace("ImportError", " ")
