"""What Triton's interpreter did for want of a GPU, or as one would, that a reader should know."""

from __future__ import annotations

_notes: dict[str, None] = {}


def note(text: str) -> None:
    """Add a note, once."""
    _notes[text] = None


def taken() -> tuple[str, ...]:
    """The notes since the last call of this."""
    notes = tuple(_notes)
    _notes.clear()
    return notes
