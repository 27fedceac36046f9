"""What is kept on disk is found under the key that made it, and only ours is removed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import case_sets
from compare import registry
from compare.cli import main
from compare.records import result_cache
from compare.records.encoding import decode
from compare.spec import UsageError
from compare.toolchain.caches import ours, report
from compare.toolchain.caches.records import Found
from cuda_impl import build
from processes import command, python

pytestmark = pytest.mark.thorough

ARCH = "sm_80"

COMPILE = """
import sys
from compare import registry
from compare.capture import capture
from compare.resources.compiler_process import compile_triton

op = registry.get_op(sys.argv[1])
for impl in registry.implementations(op.name, ["triton.*"]):
    try:
        launches = capture(impl, op, op.cases.default, sys.argv[2])
    except NotImplementedError:
        continue
    for launch in launches:
        compile_triton(launch, sys.argv[2])
"""
"""Compiles what an op's Triton implementations launch, as a comparison on a GPU would."""


cache = partial(command, "cache")


@dataclass(frozen=True)
class Filled:
    """Caches with something in them."""

    op: str
    folders: dict[str, str]
    compiled: set[Path]

    def asked(self, file: Path, *words: object, **more: str) -> dict[str, Any]:
        done = cache(*words, "--json", file, **self.folders | more)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(file.read_text())
        return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    op = "vector_add"
    folder = tmp_path_factory.mktemp("caches")
    names = ("TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "COMPARE_CACHE_DIR", "CUDA_CACHE_PATH")
    folders = {name: str(folder / name) for name in (*names, "TORCHINDUCTOR_CACHE_DIR")}
    done = python("-c", COMPILE, op, ARCH, ready="triton", **folders)
    assert done.returncode == 0, done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPARE_CACHE_DIR", folders["COMPARE_CACHE_DIR"])
        image, _ = build.cubin(op, [f"{op}_scalar_kernel<float>"], ARCH)
        build.host_kernel(op, f"{op}_scalar_kernel<float>")
        result_cache.write("resources", result_cache.key("a"), [1])
        result_cache.write("calibration", "some-gpu", {})
    cupy = folder / "CUPY_CACHE_DIR"
    cupy.mkdir()
    (cupy / f"{'a' * 40}.cubin").write_bytes(b"b" * 40 + image)
    (cupy / f"{'c' * 40}.cubin").write_bytes(b"b" * 40 + b"another's")
    compiled = {file.parent for file in Path(folders["TRITON_CACHE_DIR"]).glob("*/*.cubin")}
    assert compiled
    return Filled(op, folders, compiled)


def test_triton_s_entry_is_found_under_the_key_that_made_it(filled: Filled, tmp_path: Path) -> None:
    """It is worked out from source, target, options and environment; Triton's own folder has that name."""
    found = filled.asked(tmp_path / "found.json", filled.op, "--arch", ARCH)
    entries = [entry for entry in found["entries"] if entry["whose"] == "Triton"]
    assert {Path(entry["place"]) for entry in entries} == filled.compiled
    for entry in entries:
        names = {file["name"] for file in entry["files"]}
        kernel = entry["kernel"]
        assert {f"{kernel}.{stage}" for stage in ("ttir", "ttgir", "llir", "ptx", "cubin", "json")} <= names
        for file in entry["files"]:
            assert file["bytes"] == (Path(entry["place"]) / file["name"]).stat().st_size
        made_of = {part["name"]: part["value"] for part in entry["made_of"]}
        assert made_of["target"] == "cuda:80"
        assert "num_warps=4" in made_of["options"]
        assert "BLOCK_SIZE=1024" in made_of["constants"]
        assert "*fp32" in made_of["signature"]
        assert "none" in made_of["environment"]


def test_what_makes_the_key_is_what_changes_it(filled: Filled, tmp_path: Path) -> None:
    words = (filled.op, "--only", "triton.*", "--arch")
    asked = [
        filled.asked(tmp_path / "a.json", *words, ARCH),
        filled.asked(tmp_path / "b.json", *words, "sm_90"),
        filled.asked(tmp_path / "c.json", *words, ARCH, DISABLE_LLVM_OPT="1"),
    ]
    first, other_arch, other_environment = (found["entries"][0] for found in asked)
    assert len({first["key"], other_arch["key"], other_environment["key"]}) == 3
    assert first["files"]
    for absent in (other_arch, other_environment):
        assert absent["files"] == []
    parts = {part["name"]: part["value"] for part in other_environment["made_of"]}
    assert "DISABLE_LLVM_OPT=" in parts["environment"]
    # What is kept under the first key is shown there too, as another's of the same kernel.
    assert other_arch["kernel"] == asked[1]["entries"][1]["kernel"]
    assert asked[1]["entries"][1]["key"] == first["key"]
    assert "would be" in report.render(decode(Found, asked[1]), 120)


def test_ours_and_cupy_s_are_found_by_the_kernels_they_hold(filled: Filled, tmp_path: Path) -> None:
    found = filled.asked(tmp_path / "found.json", filled.op, "--arch", ARCH)
    (cupy,) = (entry for entry in found["entries"] if entry["whose"] == "cupy")
    assert cupy["key"] == "a" * 40
    assert cupy["kernel"] == f"{filled.op}_scalar_kernel"
    mine = {entry["what"] for entry in found["entries"] if entry["whose"] == "ours"}
    assert mine == {f"kernel by NVRTC for {ARCH}", "host build of a kernel"}
    other = next(name for name in registry.op_names() if name != filled.op)
    assert filled.asked(tmp_path / "other.json", other, "--only", "cupy.*", "--arch", ARCH)["entries"] == []


def test_the_module_of_today_s_sources_is_told_from_older_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))
    current = build.module_name("vector_add", "host")
    older = re.sub(r"[0-9a-f]{20}", "0" * 20, current)
    for name in (current, older):
        (tmp_path / name).touch()
    found = {entry.place.name: entry.what for entry in ours.entries("vector_add", set(), [ARCH])}
    assert found == {
        current: "pybind11 module for host, the one in use",
        older: "pybind11 module for host",
    }


def test_every_cache_is_measured(filled: Filled, tmp_path: Path) -> None:
    found = filled.asked(tmp_path / "found.json")
    by_name = {each["whose"]: each for each in found["caches"]}
    for each in by_name.values():
        assert each["folder"] == filled.folders[each["variable"]]
        files = [path for path in Path(each["folder"]).rglob("*") if path.is_file()]
        assert each["there"] == Path(each["folder"]).is_dir()
        assert each["files"] == len(files)
        assert each["bytes"] == sum(path.stat().st_size for path in files)
    assert by_name["Triton"]["files"] > 0
    assert not by_name["torch.compile"]["there"]


@pytest.mark.parametrize("op", case_sets.every(7))
def test_every_op_is_shown(op: str, tmp_path: Path) -> None:
    done = cache(op, "--arch", "sm_90", TRITON_CACHE_DIR=str(tmp_path), COMPARE_CACHE_DIR=str(tmp_path / "o"))
    assert done.returncode == 0, done.stderr
    for impl in registry.implementations(op, ["triton.*"]):
        assert re.search(rf"\({impl.label} for sm_90\)|{impl.label} for sm_90: \S+", done.stdout), impl.label
    assert not (tmp_path / "o").exists(), "looking makes nothing"


# --------------------------------------------------------------------------- clearing


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Our cache, with one thing of every kind in it."""
    folder = tmp_path / "mine"
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(folder))
    key = "0123456789abcdef0123"
    for name in (
        f"libhost-{key}.so",
        f"host-{key}.h",
        f"host-{key}.h.gch",
        f"vector_add-host-{key}.cpython-311-x86_64-linux-gnu.so",
        f"vector_add-sm_90-{key}.cpython-311-x86_64-linux-gnu.so",
        f"softmax-host-{key}.cpython-311-x86_64-linux-gnu.so",
        f"vector_add_scalar_kernel_float-{key}.so",
        f"softmax_online_kernel_float_1_8_1024-{key}.so",
        f"nvrtc-sm_80-{key}.cubin",
        f"nvcc-sm_90a-{key}.cubin",
        f"nvcc-sm_90-{key}.fatbin",
    ):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x" * 100)
        (folder / f"{name}.lock").touch()
    (folder / f"left-{key}.so.lock").touch()
    (folder / "thing.part").mkdir()
    (folder / "thing.part" / "half").write_bytes(b"x" * 50)
    result_cache.write("resources", result_cache.key("a"), [1])
    result_cache.write("code_size", result_cache.key("a"), [1])
    result_cache.write("hash_of_code", result_cache.key("a"), "00")
    result_cache.write("calibration", "some-gpu", {})
    return folder


def test_all_of_ours_goes_and_what_was_measured_stays(mine: Path) -> None:
    found = ours.clear()
    assert [path.name for path in mine.iterdir()] == ["calibration"]
    assert (mine / "calibration" / "some-gpu.json").exists()
    kinds = {kind: (count, size) for kind, count, size in found.kinds}
    assert kinds["pybind11 module"] == (3, 300)
    assert kinds["host build of a kernel"] == (2, 200)
    assert kinds["kernel by nvcc"] == (2, 200)
    assert kinds["left by an interrupted build"] == (1, 50)
    assert kinds["static figures"][0] == kinds["code sizes"][0] == kinds["hashes of code"][0] == 1
    assert kinds["header of host builds"] == (2, 200)
    assert found.files == 15
    assert "calibration" in found.kept[0]
    assert ours.clear().files == 0


def test_of_one_op_only_its_own_goes(mine: Path) -> None:
    before = {path.name for path in mine.iterdir()}
    found = ours.clear("vector_add", frozenset({"vector_add_scalar_kernel"}))
    gone = {name for name in before - {path.name for path in mine.iterdir()} if not name.endswith(".lock")}
    assert {name.partition("-")[0] for name in gone} == {"vector_add", "vector_add_scalar_kernel_float"}
    assert found.files == len(gone) == 3
    assert all((mine / name.removesuffix(".lock")).exists() for name in before if name.startswith("softmax"))


@pytest.mark.parametrize("make", ["file", "folder", "link"])
def test_what_is_not_ours_stops_it(mine: Path, make: str, tmp_path: Path) -> None:
    strange = mine / "zz-thesis"
    if make == "file":
        strange.write_text("mine")
    elif make == "folder":
        strange.mkdir()
    else:
        strange.symlink_to(tmp_path)
    before = sorted(mine.rglob("*"))
    with pytest.raises(UsageError, match="zz-thesis is nothing that this project builds") as error:
        ours.clear()
    assert sorted(mine.rglob("*")) == before
    assert "\n" not in str(error.value)


def test_what_is_being_built_stops_it(mine: Path) -> None:
    lock = next(mine.glob("softmax-host-*.lock"))
    before = sorted(mine.rglob("*"))
    with (
        FileLock(lock),
        pytest.raises(UsageError, match=r"softmax-host-.* is being built by another process"),
    ):
        ours.clear()
    assert sorted(mine.rglob("*")) == before
    ours.clear()


def test_the_command_clears_ours_alone(mine: Path, tmp_path: Path) -> None:
    triton = tmp_path / "triton"
    triton.mkdir()
    (triton / "kernel.json").write_text("{}")
    file = tmp_path / "cleared.json"
    done = cache("--clear", "--json", file, TRITON_CACHE_DIR=str(triton))
    assert done.returncode == 0, done.stderr
    assert re.search(r"removed 15 files, [\d.]+ K?B, from", done.stdout)
    assert f"Triton's in {triton}" in " ".join(done.stdout.split())
    assert json.loads(file.read_text())["folder"] == str(mine)
    assert (triton / "kernel.json").exists()
    (mine / "thesis").touch()
    done = cache("--clear")
    assert done.returncode == 2
    assert "nothing that this project builds" in done.stderr


def without_compiling(command: Iterable[str | Path], what: str) -> str:
    """`build.run` that makes an empty product, named behind ``-o``."""
    *_, product = command
    Path(product).touch()
    return ""


def test_what_a_build_leaves_is_known_as_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every kind of file that cuda_impl.build writes, by its real name."""
    folder = tmp_path / "real"
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(folder))
    kernel = "vector_add_scalar_kernel<float>"
    build.host_kernel("vector_add", kernel)
    build.cubin("vector_add", [kernel], "sm_90")
    build.nvcc_cubin("vector_add", [kernel], "sm_90")
    build.fatbin("vector_add", kernel, "sm_90")
    with monkeypatch.context() as patch:
        patch.setattr(build, "run", without_compiling)  # pybind11's headers take g++ long
        for target in ("host", "sm_90"):
            build.pybind_module("vector_add", target)
    names = {path.name: ours.kind_of(path)[0] for path in folder.iterdir()}
    assert "" not in names.values(), names
    assert set(names.values()) == {kind for kind, *_ in ours._KINDS} | {"lock"}
    ours.clear()
    assert not any(folder.iterdir())


# --------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("softmaks",), "did you mean softmax"),
        (("--arch", "sm_90"), "belong to an op"),
        (("softmax", "--arch", "sm_70"), "architecture 'sm_70' is not known"),
        (("softmax", "--only", "x.*"), "no implementation of softmax 'x.*'"),
        (("softmax", "--only", "triton.*", "--clear"), "leave out --only"),
        (("--json", "no/such/folder"), "name a file in a folder that exists"),
    ],
)
@pytest.mark.usefixtures("decorated")
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", *words]) == 2
    assert said in capsys.readouterr().err
