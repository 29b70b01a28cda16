"""System call numbers and the allow-lists of confined processes, as classic BPF programs for seccomp.

An allow-list: whatever is not named here fails with EPERM. Paths cannot be judged by BPF; Landlock does that
(`whale_env.sandbox.kernel`). Numbers are those of the kernel's own tables for x86-64 and 64-bit Arm
(``arch/x86/entry/syscalls/syscall_64.tbl``, ``include/uapi/asm-generic/unistd.h``); other machines are not covered.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable
from typing import Literal

Role = Literal["reader", "writer", "zygote"]
"""``reader``: no file is opened for writing. ``writer``: files may be, where Landlock allows. ``zygote``: may fork."""

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine name to its column in `NUMBERS` and its AUDIT_ARCH value."""

NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "access": (21, None),
    "brk": (12, 214),
    "capset": (126, 91),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "chdir": (80, 49),
    "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    "epoll_wait": (232, None),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "fadvise64": (221, 223),
    "fcntl": (72, 25),
    "fork": (57, None),
    "fstat": (5, 80),
    "fsync": (74, 82),
    "ftruncate": (77, 46),
    "futex": (202, 98),
    "getcpu": (309, 168),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "getegid": (108, 177),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getitimer": (36, 102),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getrandom": (318, 278),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "getuid": (102, 174),
    "ioctl": (16, 29),
    "kill": (62, 129),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "lseek": (8, 62),
    "lstat": (6, None),
    "madvise": (28, 233),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "nanosleep": (35, 101),
    "newfstatat": (262, 79),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "poll": (7, None),
    "ppoll": (271, 73),
    "prctl": (157, 167),
    "pread64": (17, 67),
    "preadv": (295, 69),
    "prlimit64": (302, 261),
    "pselect6": (270, 72),
    "pwrite64": (18, 68),
    "pwritev": (296, 70),
    "read": (0, 63),
    "readv": (19, 65),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "restart_syscall": (219, 128),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124),
    "seccomp": (317, 277),
    "select": (23, None),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "set_robust_list": (273, 99),
    "setitimer": (38, 103),
    "setrlimit": (160, 164),
    "sigaltstack": (131, 132),
    "stat": (4, None),
    "statx": (332, 291),
    "sysinfo": (99, 179),
    "time": (201, None),
    "times": (100, 153),
    "umask": (95, 166),
    "uname": (63, 160),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "wait4": (61, 260),
    "write": (1, 64),
    "writev": (20, 66),
}

ALLOWED: dict[Role, tuple[str, ...]] = {
    "reader": (
        *("read", "readv", "pread64", "preadv", "write", "writev", "close", "close_range", "dup", "dup2", "dup3"),
        *("lseek", "fstat", "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2"),
        *("getdents64", "getcwd", "fadvise64", "brk", "mmap", "mprotect", "mremap"),
        *("munmap", "madvise", "futex", "rseq", "set_robust_list", "restart_syscall", "sched_yield", "getcpu"),
        *("sched_getaffinity", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "setitimer"),
        *("getitimer", "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time"),
        *("times", "getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "getrlimit", "getrusage"),
        *("getrandom", "poll", "ppoll", "select", "pselect6", "sysinfo", "uname", "umask", "exit", "exit_group"),
    )
}
ALLOWED["writer"] = (
    *ALLOWED["reader"],
    *("pwrite64", "pwritev", "ftruncate", "fsync", "rename", "renameat", "renameat2", "unlink", "unlinkat"),
)
ALLOWED["zygote"] = (
    *ALLOWED["writer"],
    *("fork", "wait4", "kill", "sendmsg", "sendto", "recvmsg", "recvfrom", "epoll_ctl", "epoll_wait", "epoll_pwait"),
    *("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp", "prctl", "capset", "chdir"),
    *("setrlimit", "prlimit64"),
)

WITHOUT = ("clone3", "openat2")
"""Calls answered with ENOSYS, upon which the C library falls back to an older one whose flags BPF can read."""

FCNTL = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC; never F_SETOWN
IOCTL = (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONBIO, FIONCLEX, FIOCLEX
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* bit

_LOAD, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_DENY = _ERRNO | errno.EPERM

Instruction = tuple[int, int, int, int]


def program(role: Role, machine: str | None = None) -> bytes:
    """Builds the filter of one role.

    Args:
        role: Which allow-list.
        machine: Machine name as `os.uname` gives it; this machine's if not given.

    Returns:
        An array of ``struct sock_filter``.

    Raises:
        KeyError: The machine is not one of `ARCHITECTURES`.
    """
    column, arch = ARCHITECTURES[machine or os.uname().machine]
    code: list[Instruction] = [(_LOAD, 0, 0, 4), (_JEQ, 1, 0, arch), (_RET, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if column == 0:  # the x32 calling convention has the same architecture value and other numbers
        code += [(_JGE, 0, 1, 0x40000000), (_RET, 0, 0, _KILL)]
    for name in ALLOWED[role]:
        code += _when(NUMBERS[name][column], [(_RET, 0, 0, _ALLOW)])
    for name in WITHOUT:
        code += _when(NUMBERS[name][column], [(_RET, 0, 0, _ERRNO | errno.ENOSYS)])
    code += _when(NUMBERS["fcntl"][column], _one_of(1, FCNTL))
    code += _when(NUMBERS["ioctl"][column], _one_of(1, IOCTL))
    code += _when(NUMBERS["open"][column], _open_flags(role, 1))
    code += _when(NUMBERS["openat"][column], _open_flags(role, 2))
    if role == "zygote":
        code += _when(NUMBERS["clone"][column], [*_argument(0), (_JSET, 0, 1, NEW_NAMESPACES), *_deny_allow()])
    else:  # reading a limit is harmless, setting one is not: the third argument must be NULL
        low, high = _argument(2)[0], _argument(2, high=True)[0]
        null = [low, (_JEQ, 0, 2, 0), high, (_JEQ, 1, 0, 0), (_RET, 0, 0, _DENY), (_RET, 0, 0, _ALLOW)]
        code += _when(NUMBERS["prlimit64"][column], null)
    code.append((_RET, 0, 0, _DENY))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _when(number: int | None, block: list[Instruction]) -> list[Instruction]:
    """Runs a returning block for one system call; the number stays loaded otherwise."""
    return [] if number is None else [(_JEQ, 0, len(block), number), *block]


def _argument(index: int, high: bool = False) -> list[Instruction]:
    return [(_LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))]  # both machines are little-endian


def _deny_allow() -> list[Instruction]:
    return [(_RET, 0, 0, _DENY), (_RET, 0, 0, _ALLOW)]


def _one_of(index: int, values: Iterable[int]) -> list[Instruction]:
    tests: list[Instruction] = []
    for value in values:
        tests += [(_JEQ, 0, 1, value), (_RET, 0, 0, _ALLOW)]
    return [*_argument(index), *tests, (_RET, 0, 0, _DENY)]


def _open_flags(role: Role, index: int) -> list[Instruction]:
    """Readers open nothing for writing. Nobody opens nameless files, which no quota of the parent could see.

    Truncating through a read-only descriptor is refused for all: kernels without Landlock's truncate right allow it.
    """
    nameless = os.O_TMPFILE & ~os.O_DIRECTORY
    if role == "reader":
        wanted = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND | nameless
        return [*_argument(index), (_JSET, 0, 1, wanted), *_deny_allow()]
    return [
        *_argument(index),
        (_JSET, 0, 1, nameless),
        (_RET, 0, 0, _DENY),
        (_JSET, 1, 0, os.O_TRUNC),
        (_RET, 0, 0, _ALLOW),
        (_JSET, 0, 1, os.O_WRONLY | os.O_RDWR),
        (_RET, 0, 0, _ALLOW),
        (_RET, 0, 0, _DENY),
    ]
