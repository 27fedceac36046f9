"""What environment variables of the toolchain do, as the blocks of docs/toolchain-environment.md.

What compilers print changes from version to version, so a block is written anew with the versions that
constraints.txt names, and left as it is with others; tests hold what it says against every Triton served.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from compare import registry
from compare.spec import UsageError
from tools.docs.toolchain_variables import EXAMPLES, examples

ARCH = "sm_90"
_PACKAGES = {"triton": "Triton", "cupy-cuda13x": "cupy"}


def block(words: str, was: str) -> str:
    """``VARIABLE OP`` at work, or for ``versions`` what printed it.

    Args:
        words: what the block is of.
        was: what the document holds now.

    Raises:
        UsageError: there is no such variable or op.
    """
    pinned = dict(re.findall(r"(?m)^([\w-]+)==([\w.]+)$", (registry.ROOT / "constraints.txt").read_text()))
    wanted = {package: pinned[package] for package in _PACKAGES}
    if {package: _installed(package) for package in _PACKAGES} != wanted:
        return was
    if words == "versions":
        shown = " and ".join(f"{_PACKAGES[package]} {number}" for package, number in wanted.items())
        return f"What follows was printed by {shown}, without a GPU."
    variable, _, op = words.partition(" ")
    if variable not in EXAMPLES or op not in registry.op_names():
        raise UsageError(
            f"<!-- generated: switch {words} -->: write versions, or a variable and an op; there are "
            f"{', '.join(EXAMPLES)}"
        )
    return f"```text\n{examples(op, ARCH)[variable]}\n```"


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
