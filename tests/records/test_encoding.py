"""A file is written whole or not at all.  What survives JSON, `test_archive` says of whole records."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.records.encoding import write_whole


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.json"
    write_whole(file, "old")

    def full(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_mode_stays_and_a_new_file_has_that_of_any(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    file = tmp_path / "out.json"
    write_whole(file, "new")
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode
    file.chmod(0o640)
    write_whole(file, "newer")
    assert file.stat().st_mode & 0o777 == 0o640
