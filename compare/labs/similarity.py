"""Pairs of submissions with similar code, by token fingerprints (winnowing, Schleimer et al. 2003)."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from compare.labs.lab import Lab
from compare.model.op import UsageError

SHOWN = 0.6
"""Pairs below this share are not listed."""
_NOISE, _GUARANTEE = 15, 25
"""Tokens: shorter matches are ignored; matches of the second length are always found."""
_LEAST = 60
"""A file with fewer tokens of its own is alike in any class."""


@dataclass(frozen=True)
class Pair:
    """Two submissions' files of one task."""

    file: str
    first: str
    second: str
    share: float
    """Of the shorter file's own tokens that the other has as well, 0 to 1; starter code is left out."""


def library() -> Any:
    """copydetect.  With it comes matplotlib: only --similar imports them.

    Raises:
        UsageError: it is missing.
    """
    try:
        return importlib.import_module("copydetect")
    except ImportError:
        raise UsageError("--similar needs copydetect: pip install -r requirements-labs.txt") from None


def pairs(lab: Lab, folders: Iterable[Path]) -> list[Pair]:
    """Similar pairs, most similar first."""
    copydetect, folders, found = library(), list(folders), []
    for starter in lab.starters:
        boilerplate = list(copydetect.CodeFingerprint(str(starter), _NOISE, 1).hashes)
        files = [folder / starter.name for folder in folders]
        prints = [(file, print_) for file in files if (print_ := _fingerprint(copydetect, file, boilerplate))]
        for (one, a), (other, b) in combinations(prints, 2):
            share = max(copydetect.compare_files(a, b)[1])
            if min(a.token_coverage, b.token_coverage) >= _LEAST and share >= SHOWN:
                first, second = (file.parent.resolve().name for file in (one, other))
                found.append(Pair(starter.name, first, second, float(share)))
    return sorted(found, key=lambda pair: -pair.share)


def _fingerprint(copydetect: Any, file: Path, boilerplate: list[int]) -> Any:
    """None of a file that is missing, too large, or no text."""
    try:
        small = file.stat().st_size < 1 << 20
        window = _GUARANTEE - _NOISE + 1
        return copydetect.CodeFingerprint(str(file), _NOISE, window, boilerplate) if small else None
    except (OSError, UnicodeDecodeError, ValueError):
        return None
