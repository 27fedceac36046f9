"""Who may use the page: a random token in its address, and for a class a file of names and tokens."""

from __future__ import annotations

import hashlib
import re
import secrets
import stat
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compare.model.op import UsageError
from compare.records.reading import read_text

TOKEN = r"[A-Za-z0-9_-]{16,128}"
_NAME = r"[\w.@-]{1,64}"
_HOUR_S = 3600.0


@dataclass(frozen=True)
class User:
    name: str
    token: str


@dataclass
class Users:
    """Users by the hash of their token, so that looking one up takes the same time for any guess."""

    by_hash: Mapping[bytes, User]
    runs_an_hour: int
    _began: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))

    def of(self, token: str) -> User | None:
        return self.by_hash.get(_hash(token))

    def wait_s(self, user: User) -> float:
        """Seconds until the user's quota allows another run; 0: it is allowed, and counted."""
        began, now = self._began[user.name], time.monotonic()
        while began and began[0] < now - _HOUR_S:
            began.popleft()
        if len(began) >= self.runs_an_hour:
            return began[0] + _HOUR_S - now
        began.append(now)
        return 0.0


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def users(named: Sequence[User], runs_an_hour: int) -> Users:
    return Users({_hash(user.token): user for user in named}, runs_an_hour)


def alone() -> list[User]:
    """One user with a new random token."""
    return [User("you", secrets.token_urlsafe(24))]


def read(file: Path) -> list[User]:
    """The users of ``--auth FILE``: lines ``name token``; ``#`` begins a comment.

    Raises:
        UsageError: the file cannot be read, others may read it, or a line has another form.
    """
    text = read_text(file)
    if file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        raise UsageError(f"--auth {file}: others may read it, and it holds tokens: chmod 600 {file}")
    found: list[User] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not re.fullmatch(_NAME, words[0]) or not re.fullmatch(TOKEN, words[1]):
            raise UsageError(
                f"--auth {file}, line {number}: write a name, a space and a token of 16 letters, digits, - "
                "or _ at least, as 'openssl rand -hex 16' prints"
            )
        found.append(User(*words))
    for what, values in (("name", [user.name for user in found]), ("token", [user.token for user in found])):
        if len(set(values)) < len(values):
            raise UsageError(f"--auth {file}: two users have one {what}: give each their own")
    if not found:
        raise UsageError(f"--auth {file}: it names no user: write lines of a name and a token")
    return found
