"""Characters that an output's encoding lacks, as in the C locale, written with those it has."""

from __future__ import annotations

import codecs
import unicodedata

from compare.report.sparkline import BARS

SUBSTITUTES = "compare.substitutes"
"""The error handler for `str.encode` and for streams: it never raises."""
_INSTEAD = {"±": "+-", "µ": "u", "·": "|", "×": "x", "→": "->", "–": "-", "—": "-", "’": "'"}
_INSTEAD |= {bar: str(i) for i, bar in enumerate(BARS, 1)}


def _substituted(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_instead, error.object[error.start : error.end])), error.end


def _instead(character: str) -> str:
    """Without its accent, or what it stands for; else a question mark."""
    bare = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode("ascii")
    return _INSTEAD.get(character, bare or "?")


codecs.register_error(SUBSTITUTES, _substituted)
