"""The document of environment variables: every one is there, and shown as the compilers print it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compare.model.op import UsageError
from compare.registry import ROOT
from tools.docs.toolchain_variables import examples, runs, trying
from tools.docs.toolchain_variables.__main__ import main
from tools.docs.toolchain_variables.examples import EXAMPLES, Example

DOCUMENT = (ROOT / "docs" / "toolchain-environment.md").read_text()


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions that the document is written with."""
    text = (ROOT / "constraints.txt").read_text()
    found = dict(re.findall(r"(?m)^([\w-]+)==([\w.]+)$", text))
    monkeypatch.setattr(examples, "version", found.__getitem__)


def test_the_document_shows_every_variable() -> None:
    blocks = re.findall(
        r"<!-- generated: switch ([A-Z_ ]+) vector_add -->\n(.*?)<!-- end -->", DOCUMENT, re.DOTALL
    )
    assert [name for names, _ in blocks for name in names.split()] == list(EXAMPLES)
    for names, body in blocks:
        for name in names.split():
            command = f"{EXAMPLES[name].variables} python -m tools.docs.toolchain_variables vector_add sm_90"
            assert f"\n$ {command}" in body
            for variable in re.findall(r"(\w+)=", EXAMPLES[name].variables):
                assert f"`{variable}" in DOCUMENT, "in a table"


@pytest.mark.usefixtures("pinned")
def test_a_block_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"MLIR_ENABLE_DUMP": "passes", "NVPTX_ENABLE_DUMP": "PTX"}
    monkeypatch.setattr(examples, "examples", lambda op, arch: shown)
    assert examples.block("MLIR_ENABLE_DUMP vector_add", "was") == "```text\npasses\n```"
    both = examples.block("MLIR_ENABLE_DUMP NVPTX_ENABLE_DUMP vector_add", "was")
    assert both == "```text\npasses\n\nPTX\n```"
    assert re.fullmatch(
        r"What .* Triton [\d.]+ and cupy [\d.]+, without a GPU\.", examples.block("versions", "was")
    )


@pytest.mark.usefixtures("pinned")
@pytest.mark.parametrize(
    "words", ["MLIR_ENABLE_DUMPS vector_add", "MLIR_ENABLE_DUMP vector_ad", "vector_add", ""]
)
def test_a_block_of_what_does_not_exist_is_a_mistake(words: str) -> None:
    with pytest.raises(UsageError, match="write versions, or a variable and an op"):
        examples.block(words, "")


def test_with_other_versions_a_block_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "version", lambda package: "0.1")
    assert examples.block("MLIR_ENABLE_DUMP vector_add", "was") == "was"


def test_an_output_is_shortened_and_says_so(tmp_path: Path) -> None:
    example = Example("X=1", shown="pass|done", files="*")
    (tmp_path / "a").touch()
    key = "A" * 52
    said = "".join(f"pass {i} of {tmp_path}/{key} in 1.25 s\nnoise\n" for i in range(9)) + "done\n"
    text = trying._written(example, ("op", "sm_90"), said, tmp_path).splitlines()
    assert text[0] == "$ X=1 python -m tools.docs.toolchain_variables op sm_90"
    assert text[1] == "pass 0 of DIR/KEY in TIME s"
    assert text[-4:] == ["... 5 more such lines", "done", "$ find DIR -type f", "DIR/a"]
    assert len(text) == 1 + 4 + 4


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_example_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str, arch: str) -> None:
        raise ValueError(f"no {name} for {arch}")

    monkeypatch.setitem(runs.RUNS, "fails", fails)
    with pytest.raises(RuntimeError, match=r"(?s)X=1: .*ValueError: no vector_add for sm_90"):
        trying.tried(Example("X=1", run="fails"), "vector_add", "sm_90")


def test_mistakes_are_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["vector_add", "sm_70"]) == 2
    assert "architecture 'sm_70' is not known" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main(["vector_ad", "sm_90"])
    assert "invalid choice: 'vector_ad'" in capfd.readouterr().err
