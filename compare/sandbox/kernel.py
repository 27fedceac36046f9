"""The calls of the Linux kernel that isolate a process, through ctypes: namespaces, Landlock, seccomp.

Sources: landlock(7), seccomp(2), user_namespaces(7), mount_setattr(2).  Every function raises `OSError` where
the kernel, or the container around this process, refuses.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import signal
import struct
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

NEW_USER, NEW_MOUNTS, NEW_NETWORK = 0x10000000, 0x20000, 0x40000000
NEW_IPC, NEW_PIDS = 0x8000000, 0x20000000

_SET_PARENT_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _DROP_BOUNDING = 1, 4, 22, 24
_SET_NO_NEW_PRIVILEGES = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _MOUNT_SETATTR = 444, 445, 446, 442

_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12
_READ_ONLY, _NO_DEVICES = 1, 4
_AT_RECURSIVE = 0x8000

_WRITE_FILE, _READ_FILE, _TRUNCATE, _USE_DEVICE = 1 << 1, 1 << 2, 1 << 14, 1 << 15
_WRITES = 0b11_1111_1111_0010 | _TRUNCATE
"""Landlock's rights that change files: write, remove, make (each kind), refer, truncate."""
_DEVICES = 1 << 6 | 1 << 11 | _USE_DEVICE
"""The rights to make a character or block device, and to use one."""
_SCOPES = 0b11  # abstract Unix sockets, signals


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int = 0) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def not_dumpable() -> None:
    """Close this process's memory and environment to other processes of the user (``/proc/PID``, ptrace)."""
    prctl(_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Let no program that this process starts gain privileges, as by set-user-ID."""
    prctl(_SET_NO_NEW_PRIVILEGES, 1)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent exits."""
    prctl(_SET_PARENT_DEATH_SIGNAL, 9)


# --------------------------------------------------------------------------- namespaces


def unshare(namespaces: int) -> None:
    """Enter new namespaces under the user and group that this process has.  It must have one thread."""
    user, group = os.geteuid(), os.getegid()
    prctl(_SET_DUMPABLE, 1)  # or the files below belong to root
    _check(_libc.unshare(namespaces), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with contextlib.suppress(OSError):
        Path("/proc/sys/user/max_user_namespaces").write_text("0")  # nested ones: of this namespace only


def read_only_but(
    private: Path, size: int, files: int, devices: Iterable[Path], writable: Iterable[Path] = ()
) -> None:
    """Make all mounts read-only in a new mount namespace, but for a new file system in memory on ``private``.

    Args:
        private: a folder.
        size: of the file system, in bytes.
        files: the most files in it.
        devices: the only ones that can be opened: writing to a device is no change of its file system.
        writable: folders that stay writable.
    """
    _mount("none", Path("/"), "", _PRIVATE | _RECURSIVE)
    _mount("tmpfs", private, "tmpfs", 0, f"size={size},nr_inodes={files},mode=700")
    devices, writable = [*devices], [*writable]
    for path in (*devices, *writable):
        bind(path, path)
    _set(Path("/"), _READ_ONLY | _NO_DEVICES, 0, _AT_RECURSIVE)
    for folder in (private, *writable):
        _set(folder, 0, _READ_ONLY, 0)
    for device in devices:
        _set(device, 0, _NO_DEVICES, 0)


def bind(source: Path, target: Path) -> None:
    """Show a file or folder in the place of another, with what is mounted in it."""
    _mount(str(source), target, "", _BIND | _RECURSIVE)


def mount_proc(most: int) -> None:
    """Show the processes of a new PID namespace only, read-only, and allow it so many.

    Root may change the machine's settings there without any capability.
    """
    _mount("proc", Path("/proc"), "proc", 0)
    if has_own_pid_max():
        with contextlib.suppress(OSError):
            Path("/proc/sys/kernel/pid_max").write_text(str(most))
    _set(Path("/proc"), _READ_ONLY, 0, 0)


def has_own_pid_max() -> bool:
    """Whether a PID namespace limits its processes; before Linux 6.14 that limit was the machine's."""
    return [int(number) for number in re.findall(r"\d+", platform.release())[:2]] >= [6, 14]


def _mount(source: str, target: Path, kind: str, flags: int, data: str = "") -> None:
    words = source.encode(), os.fsencode(target), kind.encode()
    done = _libc.mount(*words, ctypes.c_ulong(flags), data.encode())
    _check(done, f"mount on {target}")


def _set(target: Path, added: int, cleared: int, flags: int) -> None:
    attributes = struct.pack("QQQQ", added, cleared, 0, 0)
    done = _libc.syscall(_MOUNT_SETATTR, -100, os.fsencode(target), flags, attributes, len(attributes))
    _check(done, f"mount_setattr of {target}")


def drop_capabilities() -> None:
    """Give up what a new user namespace gave, for programs that this process starts too."""
    for capability in range(64):
        if _libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0) < 0:
            break  # the kernel knows no more
    header = struct.pack("Ii", 0x20080522, 0)
    _check(_libc.syscall(_numbers()["capset"], header, bytes(24)), "capset")


# --------------------------------------------------------------------------- Landlock


def landlock_version() -> int:
    """Landlock's ABI; 0 where the kernel has none, or a container refuses it."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, 0, 1)))


def landlock(
    version: int, folders: Iterable[Path], devices: Iterable[Path], readable: Iterable[Path]
) -> None:
    """Allow this process to change files in these folders and to use these devices, and no others.

    It may read ``folders`` and what is ``readable``.

    Landlock also keeps it from tracing processes outside, and from version 6 on from signalling them.
    """
    handled = _WRITES | _READ_FILE
    use = _WRITE_FILE | _READ_FILE
    if version >= 5:
        handled, use = handled | _USE_DEVICE, use | _USE_DEVICE
    if version < 3:
        handled &= ~_TRUNCATE
    if version < 2:
        handled &= ~(1 << 13)  # refer: moving files between folders, refused anyway
    attributes = struct.pack("QQQ", handled, 0, _SCOPES if version >= 6 else 0)
    size = 24 if version >= 6 else 8
    ruleset = _check(_libc.syscall(_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    rules = [*((path, handled & ~_DEVICES) for path in folders), *((path, use) for path in devices)]
    rules += [(path, _READ_FILE) for path in readable]
    try:
        for path, rights in rules:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:  # another process's, removed in the meantime
                continue
            try:
                rule = struct.pack("=Qi", rights, descriptor)
                _check(_libc.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule for {path}")
            finally:
                os.close(descriptor)
        no_new_privileges()
        _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


# --------------------------------------------------------------------------- seccomp

_X86_64 = {
    "ioctl": 16, "shmget": 29, "socket": 41, "connect": 42, "kill": 62, "semget": 64, "msgget": 68,
    "clone": 56, "fcntl": 72, "ptrace": 101, "setpgid": 109, "setsid": 112, "capset": 126,
    "rt_sigqueueinfo": 129,
    "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "prctl": 157, "tkill": 200,
    "sched_setaffinity": 203, "timer_create": 222, "tgkill": 234, "mq_open": 240, "add_key": 248,
    "request_key": 249, "keyctl": 250, "ioprio_set": 251, "rt_tgsigqueueinfo": 297, "prlimit64": 302,
    "sched_setattr": 314, "memfd_create": 319,
}  # fmt: skip
_AARCH64 = {
    "fcntl": 25, "ioctl": 29, "ioprio_set": 30, "capset": 91, "timer_create": 107, "ptrace": 117,
    "sched_setparam": 118,
    "sched_setscheduler": 119, "sched_setaffinity": 122, "kill": 129, "tkill": 130, "tgkill": 131,
    "rt_sigqueueinfo": 138, "setpriority": 140, "setpgid": 154, "setsid": 157, "prctl": 167, "mq_open": 180,
    "msgget": 186, "semget": 190, "shmget": 194, "socket": 198, "connect": 203, "add_key": 217,
    "request_key": 218, "keyctl": 219, "clone": 220, "rt_tgsigqueueinfo": 240, "prlimit64": 261,
    "sched_setattr": 274, "memfd_create": 279,
}  # fmt: skip
_BOTH = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "clone3": 435, "memfd_secret": 447, "file_setattr": 469,
}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, _X86_64 | _BOTH), "aarch64": (0xC00000B7, _AARCH64 | _BOTH)}

_DENIED = (
    *("socket", "connect", "io_uring_setup", "setsid"),
    *("tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"),
    # What these make outlives its process.
    *("shmget", "semget", "msgget", "mq_open", "add_key", "request_key", "keyctl", "file_setattr"),
    "timer_create",  # SIGCONT from a timer: a process that the judge has stopped would go on
    "ptrace",  # a tracer keeps SIGSTOP from the process that it traces
)
_UNCOUNTED = ("memfd_create", "memfd_secret")
"""Memory that no limit of a process counts.  Denied where there is such a limit."""
_OF_ITSELF = (
    *(("kill", 0), ("tgkill", 0), ("prlimit64", 0), ("setpriority", 1), ("ioprio_set", 1)),
    *((f"sched_{name}", 0) for name in ("setaffinity", "setattr", "setparam", "setscheduler")),
)
"""Calls that may name this process only, and the argument that does: 0 or its number."""
_DENIED_WITH = (
    ("kill", 1, (signal.SIGCONT,)),  # under way when the judge sends SIGSTOP, it cancels that
    ("tgkill", 2, (signal.SIGCONT,)),
    ("fcntl", 1, (8, 15)),  # F_SETOWN, F_SETOWN_EX: a pipe that signals a process
    ("fcntl", 1, (10, 1024, 1026)),  # F_SETSIG, F_SETLEASE, F_NOTIFY: any signal, SIGCONT too
    ("ioctl", 1, (0x8901, 0x8902)),  # FIOSETOWN, SIOCSPGRP: the same of a socket
    (
        "ioctl",
        1,
        (0x40086602, 0x401C5820),
    ),  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR: files that cannot be removed
    ("setpriority", 0, (2,)),  # all processes of the user
    ("ioprio_set", 0, (3,)),
)
"""Calls with certain values of an argument."""

_Instruction = tuple[int, int, int, int]
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # of a classic BPF program
_ALLOW = 0x7FFF0000
_IGNORE = 0x00050000
"""Return 0 and do nothing."""
_DENY, _UNKNOWN = _IGNORE | errno.EACCES, _IGNORE | errno.ENOSYS
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000
_UNIX, _PACKETS = 1, 0x80005  # AF_UNIX; SOCK_SEQPACKET | SOCK_CLOEXEC


def _numbers() -> dict[str, int]:
    if platform.machine() not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no table of system calls for {platform.machine()}")
    return _MACHINES[platform.machine()][1]


def seccomp(*, gpu: bool = False) -> None:
    """Refuse this process, and all that it starts, sockets but pairs, effects on others, and own sessions.

    What stays in its process group ends with it where there is no PID namespace: a new group is not made,
    though that seems to succeed.  It can arrange for no signal to come later: SIGCONT would let it go on
    after the judge has stopped it.

    Args:
        gpu: allow the one kind of socket that CUDA needs to start: sequential packets on this machine.
            Connecting it stays refused.  Allow memory files too: with CUDA there is no limit to memory.
    """
    numbers, architecture = _numbers(), _MACHINES[platform.machine()][0]
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _DENY),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),  # x86's second table of calls
        (_RETURN, 0, 0, _DENY),
    ]
    if gpu:
        steps = [(_LOAD, 0, 0, _ARGUMENT), (_EQUAL, 0, 3, _UNIX), (_LOAD, 0, 0, _ARGUMENT + 8)]
        steps += [(_EQUAL, 0, 1, _PACKETS), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _DENY)]
        program += _of_call(numbers["socket"], steps)
    for name in (*_DENIED, *(() if gpu else _UNCOUNTED)):
        program += _of_call(numbers[name], [(_RETURN, 0, 0, _DENY)])
    # ninja has every compiler lead a process group, and does not run where that is refused.
    program += _of_call(numbers["setpgid"], [(_RETURN, 0, 0, _IGNORE)])
    # Its flags are in memory, which a filter cannot read; the C library then calls clone.
    program += _of_call(numbers["clone3"], [(_RETURN, 0, 0, _UNKNOWN)])
    ends_with = [
        (_LOAD, 0, 0, _ARGUMENT),
        (_AND, 0, 0, 0xFF),
        (_EQUAL, 2, 0, 0),
        (_EQUAL, 1, 0, signal.SIGCHLD),
    ]
    program += _of_call(numbers["clone"], [*ends_with, (_RETURN, 0, 0, _DENY)])
    # When its parent ends, it may ask to be killed.
    at_parents_end = [(_LOAD, 0, 0, _ARGUMENT), (_EQUAL, 0, 3, _SET_PARENT_DEATH_SIGNAL)]
    at_parents_end += [(_LOAD, 0, 0, _ARGUMENT + 8), (_EQUAL, 1, 0, signal.SIGKILL), (_RETURN, 0, 0, _DENY)]
    program += _of_call(numbers["prctl"], at_parents_end)
    for name, argument, values in _DENIED_WITH:
        program += _of_call(numbers[name], _if_argument(argument, values, _DENY))
    for name, argument in _OF_ITSELF:
        itself = _if_argument(argument, (os.getpid(), 0), _ALLOW)
        program += _of_call(numbers[name], [*itself, (_RETURN, 0, 0, _DENY)])
    program.append((_RETURN, 0, 0, _ALLOW))
    _install(program)


def _of_call(number: int, steps: list[_Instruction]) -> list[_Instruction]:
    """Steps for one call; those that follow are for the others, and for it where none of these returns."""
    return [(_LOAD, 0, 0, _NUMBER), (_EQUAL, 0, len(steps), number), *steps]


def _if_argument(argument: int, values: Iterable[int], result: int) -> list[_Instruction]:
    """Return ``result`` if an argument, an int, is one of these."""
    steps = [(_LOAD, 0, 0, _ARGUMENT + 8 * argument)]
    for value in values:
        steps += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, result)]
    return steps


def _install(program: list[_Instruction]) -> None:
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    no_new_privileges()
    _check(_libc.prctl(_SET_SECCOMP, 2, filter_, 0, 0), "prctl SECCOMP")
