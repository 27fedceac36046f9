"""The JSON Schema files describe what the commands write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import made_up
from compare import cli
from compare.records import archive
from compare.registry import ROOT
from tools.docs import schemas


def check(name: str, document: Any) -> None:
    jsonschema.Draft202012Validator(schemas.schema(name)).validate(document)


def test_a_record_is_as_its_schema_says() -> None:
    smallest = min(archive.RESULTS.glob("*/*.json"), key=lambda path: path.stat().st_size)
    check("comparison", json.loads(smallest.read_text()))


def test_a_figure_that_is_no_number_is_in_the_schema_and_a_missing_field_is_not() -> None:
    document = json.loads(archive.dumps([made_up.comparison(made_up.case("M=7,N=7,fp32"))]))
    document["runs"][0]["environment"]["memory_bytes"] = 1
    check("comparison", document)
    del document["runs"][0]["op"]
    with pytest.raises(jsonschema.ValidationError, match="'op' is a required property"):
        check("comparison", document)


def test_a_map_and_a_diff_are_as_their_schemas_say(tmp_path: Path) -> None:
    smallest = min(archive.RESULTS.glob("*/*.json"), key=lambda path: path.stat().st_size)
    for name, words in {
        "map": ["map", "--records", str(smallest)],
        "diff": ["diff", str(smallest), str(smallest)],
    }.items():
        file = tmp_path / f"{name}.json"
        assert cli.main([*words, "--json", str(file)]) == 0
        check(name, json.loads(file.read_text()))


@pytest.mark.exhaustive
def test_marks_and_programs_are_as_their_schemas_say(tmp_path: Path) -> None:
    for name, words in {
        "start": ["lab", "start", "01", "X"],
        "grade": ["grade", "X", "--json", "grade.json"],
        "aot": ["aot", "vector_add", "--only", "triton.blocked", "--out", "out", "--json", "aot.json"],
    }.items():
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "compare", *words]
        subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, check=False)
        if name != "start":
            check(name, json.loads((tmp_path / f"{name}.json").read_text()))
