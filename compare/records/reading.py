"""Files that others wrote, read within limits of kind, place, size and time.

Every file of a hand-in, and every file that an option names, is read here.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

from compare.model.op import UsageError

_DEADLINE_S = 10.0
_PIECE_BYTES = 1 << 20


def read_bytes(path: Path, most_bytes: int = 1 << 24, within: Path | None = None) -> bytes:
    """The content of a regular file.

    Args:
        path: the file; may be a link.
        most_bytes: the largest content; what the file system says of its size does not count.
        within: the folder that it lies in after links are resolved; None: anywhere.

    Raises:
        UsageError: it cannot be read, is a device or a pipe, is too large, or lies elsewhere.
    """
    try:
        target = path.resolve(strict=True)
        if within is not None and not target.is_relative_to(within.resolve()):
            raise OSError(errno.EXDEV, f"it is a link that leads out of {within}; put the file itself there")
        return _content(target, most_bytes)
    except OSError as error:
        why = error.strerror or str(error)
    except (RuntimeError, ValueError) as error:  # a loop of links before Python 3.13; a NUL character
        why = str(error)
    raise UsageError(f"{path} cannot be read: {why}")


def read_text(path: Path, most_bytes: int = 1 << 24, within: Path | None = None) -> str:
    """The text of a regular file in UTF-8, without a byte-order mark, with ``\\n`` at the end of lines.

    Raises:
        UsageError: as of `read_bytes`, or it is not UTF-8.
    """
    content = read_bytes(path, most_bytes, within)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        why = f"it is not UTF-8 at byte {error.start}; save it as UTF-8"
        raise UsageError(f"{path} cannot be read: {why}") from None


def _content(file: Path, most_bytes: int) -> bytes:
    # Without blocking: a pipe waits for its other end, and /proc/kmsg for the next message.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        until, content = time.monotonic() + _DEADLINE_S, bytearray()
        while piece := os.read(descriptor, min(_PIECE_BYTES, most_bytes + 1 - len(content))):
            content += piece
            if len(content) > most_bytes:
                most = f"{most_bytes >> 20} MB" if most_bytes >> 20 else f"{most_bytes} bytes"
                raise OSError(errno.EFBIG, f"it has more than {most}")
            if time.monotonic() > until:
                raise OSError(errno.ETIMEDOUT, f"it took longer than {_DEADLINE_S:g} s")
        return bytes(content)
    finally:
        os.close(descriptor)
