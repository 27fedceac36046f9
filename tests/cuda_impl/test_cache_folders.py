"""Folders of caches where the usual ones cannot be written to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compare.pipeline.caches import caches
from compare.registry import ROOT
from cuda_impl import build, cache_folders

VARIABLES = ("COMPARE_CACHE_DIR", "CUPY_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The temporary folder; there is no cache's variable, and HOME is a file."""
    for name in (*VARIABLES, "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("COMPARE_TMPDIR", str(tmp_path / "shared"))
    return tmp_path / "shared"


def test_a_home_that_can_be_written_has_the_caches(
    shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_HOME", str(tmp_path / "of_triton"))
    cache_folders.begin()
    assert not any(name in os.environ for name in VARIABLES)
    assert cache_folders.folder("CUPY_CACHE_DIR") == tmp_path / ".cupy" / "kernel_cache"
    assert caches()["Triton"].folder == tmp_path / "of_triton" / ".triton" / "cache"
    assert not list(shared.iterdir())


@pytest.mark.parametrize("home", ["/proc/none", "a file"])
def test_elsewhere_they_are_in_a_temporary_folder_of_the_user_s(
    shared: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    if home != "a file":
        monkeypatch.setenv("HOME", home)
    own = shared / f"gpu-three-ways-{os.geteuid()}"
    assert build.cache_dir() == own / "compare"
    assert own.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("CUPY_CACHE_DIR", "/given")
    monkeypatch.setattr(os, "environ", dict(os.environ))  # what `begin` adds ends with the test
    cache_folders.begin()
    assert [os.environ[name] for name in VARIABLES] == [
        *(str(own / "compare"), "/given"),
        *(str(own / "triton"), str(own / "cuda")),
    ]


def test_a_folder_that_others_can_write_is_not_used(shared: Path) -> None:
    own = shared / f"gpu-three-ways-{os.geteuid()}"
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(build.BuildError, match=r"cannot write .*/file/.cache/.*: set COMPARE_CACHE_DIR"):
        build.cache_dir()
    own.rmdir()
    own.symlink_to(shared.parent)
    assert cache_folders.folder("CUPY_CACHE_DIR") == shared.parent / "file" / ".cupy" / "kernel_cache"


def test_a_user_without_a_home_is_no_error(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as of a user in no list
    monkeypatch.setattr(cache_folders, "_can_write", lambda path: path.is_relative_to(shared))
    assert build.cache_dir().is_relative_to(shared)


@pytest.mark.exhaustive
def test_cuda_rows_run_where_home_cannot_be_written(shared: Path) -> None:
    environment = {**os.environ, "HOME": "/proc/none", "TMPDIR": str(shared)}
    done = subprocess.run(
        [sys.executable, "-m", "compare", "vector_add", "--only", "*.scalar"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CORRECT  3 of 3 match" in done.stdout
    assert list(shared.glob("gpu-three-ways-*/compare/vector_add-host-*.so"))
