"""An installed copy: a wheel has all that the commands read, and works from any folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import made_up
from compare import cli, places
from compare.code_size.hashes import source_hash
from compare.records import archive
from compare.registry import ROOT, implementations

PACKAGES = ("compare/", "cuda_impl/", "ops/", "torch_impl/", "triton_impl/")
DATA = ("constraints.txt", "docs/", "examples/", "labs/", "requirements", "results/")
HASHES = """
from compare.code_size.hashes import source_hash
from compare.registry import implementations
print(*map(source_hash, implementations("softmax")))
"""
BUILD = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"


def tracked() -> list[str]:
    command = ["git", "-C", str(ROOT), "ls-files"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).is_file()]


def build(what: str, source: Path, target: Path) -> Path:
    """The wheel or sdist of a project's folder."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_ARCHS"}
    command = [sys.executable, "-W", "ignore", "-c", BUILD, f"build_{what}", str(target)]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that are in git, as building writes beside them."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in tracked():
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"))


def files_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_a_wheel_has_the_packages_and_what_they_read_and_nothing_compiled(wheel: Path) -> None:
    names = tracked()
    code = {name for name in names if name.startswith(PACKAGES)}
    assert files_in(wheel) == code | {f"compare/data/{name}" for name in names if name.startswith(DATA)}
    assert wheel.name.endswith("-py3-none-any.whl")


def test_every_package_says_that_it_is_typed() -> None:
    assert {name for name in tracked() if name.endswith("py.typed")} == {
        f"{name}py.typed" for name in PACKAGES
    }


def test_one_version_is_everywhere_and_a_tag_of_it_is_a_release(wheel: Path) -> None:
    """So `git tag` is the only step; a tag of this commit is tested too."""
    assert re.findall(r"(?m)^version: (.+)$", (ROOT / "CITATION.cff").read_text()) == [cli.VERSION]
    assert re.findall(r"(?m)^## (\d.*)$", (ROOT / "CHANGELOG.md").read_text())[0] == cli.VERSION
    assert wheel.name.split("-")[1] == cli.VERSION
    command = ["git", "-C", str(ROOT), "tag", "--points-at", "HEAD", "v*"]
    tags = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert set(tags) <= {f"v{cli.VERSION}"}


def test_an_installed_copy_reads_its_own_records_and_the_user_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed, users = tmp_path / "installed", tmp_path / "user"
    monkeypatch.setattr(archive, "RECORDS", installed)
    monkeypatch.setattr(archive, "RESULTS", users)
    run = made_up.comparison(made_up.case("M=7,N=7,fp32"))
    files = [archive.record(run, folder) for folder in (users, installed)]
    assert archive.files_in(users) == files
    assert archive.runs_of(run.op, users) == 2 * archive.runs_of(run.op, installed)


def test_an_installed_copy_says_what_it_cannot_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(places, "IS_CHECKOUT", False)
    assert cli.main(["new-op", "squared"]) == 2
    assert re.search("this copy is installed.* give --into DIR", capsys.readouterr().err)
    assert cli.main(["new-op", "squared", "--into", str(tmp_path)]) == 0
    assert "the same folders of a checkout" in capsys.readouterr().out
    monkeypatch.setattr(cli, "_module_of", lambda command: __import__("no_such_package"))
    assert cli.main(["list"]) == 2
    assert f"-m pip install -r {places.DATA / 'requirements.txt'}; " in capsys.readouterr().err


@pytest.mark.exhaustive
def test_an_sdist_has_every_file_and_builds_the_same_wheel(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    sdist = build("sdist", checkout, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert {name for name in tracked() if not (source / name).is_file()} == set()
    assert files_in(build("wheel", source, tmp_path)) == files_in(wheel)


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """What Python prints, run with the installed wheel in an empty folder and with an empty home."""
    site, home, here = (tmp_path_factory.mktemp(name) for name in ("site", "home", "here"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)

    def run(*words: str, status: int = 0) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(site)}
        done = subprocess.run(
            [sys.executable, *words], cwd=here, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.mark.exhaustive
def test_an_installed_copy_works_in_an_empty_folder(run: Callable[..., str]) -> None:
    most = max(len(list(folder.glob("*.json"))) for folder in (ROOT / "results").iterdir())
    assert f"of {most} ops" in run("-m", "compare", "map")
    assert "X/answers.toml" in run("-m", "compare", "lab", "start", "01", "X")
    assert "0 of 11 points" in run("-m", "compare", "lab", "check", "X", status=1)
    assert "give --into DIR" in run("-m", "compare", "new-op", "squared", status=2)
    assert "D/ops/squared.py" in run("-m", "compare", "new-op", "squared", "--into", "D")
    assert run("-c", HASHES).split() == [source_hash(impl) for impl in implementations("softmax")]
    speeds = run("-m", "compare", "vector_add", "--only", "cupy.*")
    assert "recorded on" in speeds
    assert "CORRECT" in speeds


@pytest.mark.exhaustive
def test_an_installed_copy_records_in_a_folder_of_the_user_s(run: Callable[..., str]) -> None:
    program = """
from dataclasses import replace
from compare.places import RECORDS
from compare.records import archive
(first,) = archive.runs_of("softmax")[:1]
print(archive.record(replace(first, created="9999-01-01T00:00:00+00:00")).relative_to(archive.Path.home()))
runs = archive.runs_of("softmax")
print(runs[0].created[:4], runs[1].created == first.created, len(archive.files_in()))
"""
    path, runs = run("-c", program).splitlines()
    assert path.startswith(".local/share/gpu-three-ways/results/")
    assert path.endswith("/softmax.json")
    recorded = len(list((ROOT / "results").glob("*/*.json")))
    assert runs == f"9999 True {recorded + 1}"
    assert "nothing is measured now" in run("-m", "compare", "show", "softmax")
