"""What the page asks for, and what it is told: typed, limited in size, checked when it is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from compare.code_size.sources import USER_FILE_BYTES

BODY_BYTES = 8 * USER_FILE_BYTES
"""The largest body of a request."""

Name = Annotated[str, Meta(max_length=80, pattern=r"^\w[\w-]*$")]
Label = Annotated[str, Meta(max_length=80, pattern=r"^(\w+\.\w+)?$")]
CaseText = Annotated[str, Meta(max_length=300, pattern=r"^[\w=,]*$")]
Source = Annotated[str, Meta(max_length=USER_FILE_BYTES)]
FileName = Annotated[str, Meta(max_length=80, pattern=r"^\w[\w-]*\.py$")]
Arch = Literal["sm_75", "sm_80", "sm_89", "sm_90a"]

Event = dict[str, Any]
"""What a run tells the page: ``kind``, and what belongs to it."""


class RunOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel to be judged."""

    op: Name
    text: Source
    suffix: Literal[".py", ".cu"] = ".py"
    case: CaseText = ""
    """Empty: the op's default."""
    arch: Arch = "sm_90a"
    """Without a GPU: what is compiled for."""
    beside: Label = ""
    """The label of the project's row that it is shown beside."""
    tune: bool = False
    """Run the values that its file declares as tunable as well."""
    predictions: Annotated[dict[Name, Annotated[str, Meta(max_length=20)]], Meta(max_length=8)] = {}


class LabOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """A lab's files to be marked."""

    lab: Name
    files: Annotated[dict[FileName, Source], Meta(max_length=12)]
    answers: Source
    """The text of ``answers.toml``."""


class JudgeOrder(Struct, frozen=True):
    """What a judge process is to do."""

    order: RunOrder | None
    folder: str
    device: str
    """``cpu`` or ``cuda:0``."""
    timeout_s: float
    lab: str = ""

    @property
    def on_gpu(self) -> bool:
        """By its name: to ask CUDA before workers' servers are forked would make it useless in them."""
        return self.device.startswith("cuda")
