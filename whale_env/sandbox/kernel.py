"""Confining the calling process: Landlock, seccomp, capabilities and resource limits, by direct system calls.

Why not a sandboxing library: a fresh process for each episode must be forked from a warm one and then confined within
a millisecond. ``sandlock`` can put the *current* process under Landlock but not under seccomp (its seccomp side
starts and supervises a new program), and asks for Landlock ABI 6; here ABI 1 suffices because seccomp already refuses
sockets and signals. ``pyseccomp`` needs the C library libseccomp on the host. Bubblewrap starts a new program in
user namespaces, which many containers forbid. What remains is a few calls of the kernel's documented interface
(``landlock(7)``, ``seccomp(2)``, ``capabilities(7)``), which need no privilege and cannot be undone.

Not covered: reading a file's existence, size and dates (neither mechanism limits ``stat``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from whale_env.forks import CAN_FORK
from whale_env.sandbox import syscalls

try:
    import resource
except ModuleNotFoundError:  # Windows, where nothing is confined, but importing must work
    resource = None  # type: ignore[assignment]

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_GET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 21, 38
PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
RULESET_VERSION = 1
PATH_BENEATH = 1
SECCOMP_SET_MODE_FILTER = 1

WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5
MAKE_REG, TRUNCATE = 1 << 8, 1 << 14
READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_FILE | MAKE_REG | TRUNCATE
OF_FILES = READ_FILE | WRITE_FILE | TRUNCATE


@dataclass(frozen=True, slots=True)
class Confinement:
    """What this kernel can do.

    Attributes:
        available: Whether untrusted code can be confined here.
        why: What is missing, or what is used.
        landlock: Landlock ABI version, 0 if there is none.
    """

    available: bool
    why: str
    landlock: int = 0


@cache
def confinement() -> Confinement:
    """Finds out, without changing anything, whether this kernel can confine a process."""
    if sys.platform != "linux" or not CAN_FORK:
        return Confinement(False, f"confinement needs Linux (Landlock and seccomp), this is {sys.platform}")
    machine = os.uname().machine
    if machine not in syscalls.ARCHITECTURES:
        known = ", ".join(syscalls.ARCHITECTURES)
        return Confinement(False, f"confinement knows the system calls of {known}, not of {machine}")
    try:
        abi = _call(_number("landlock_create_ruleset"), 0, 0, RULESET_VERSION)
    except OSError as error:
        return Confinement(False, f"this kernel (or its container) offers no Landlock: {error.strerror}")
    try:
        _prctl(PR_GET_SECCOMP)
    except OSError as error:
        return Confinement(False, f"this kernel offers no seccomp: {error.strerror}", abi)
    return Confinement(True, f"Landlock ABI {abi} and seccomp", abi)


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid_new_privileges() -> None:
    """Makes set-user-id programs and file capabilities powerless; Landlock and seccomp require it."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """Forbids core dumps, and other processes of this user to attach or read memory."""
    _prctl(PR_SET_DUMPABLE, 0)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends.

    Raises:
        ProcessLookupError: The parent has already ended.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError(f"process {parent}, which started this one, has ended")


def drop_capabilities() -> None:
    """Gives up every capability for good, so that the superuser is bound like anyone else, after an exec too."""
    with contextlib.suppress(OSError):  # ends at the last one that the kernel knows; without privilege, at the first
        for capability in range(64):
            _prctl(PR_CAPBSET_DROP, capability)
    with contextlib.suppress(OSError):
        _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _call(_number("capset"), ctypes.addressof(header), ctypes.addressof(_NO_CAPABILITIES))


def new_namespaces() -> None:
    """Gives this process mounts and shared memory of its own, and its next child processes of its own.

    Without privilege, in a user namespace in which this user stays who it is.

    Raises:
        OSError: The system forbids it.
    """
    wanted = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID
    user, group = os.getuid(), os.getgid()
    try:
        _libc_call("unshare", ctypes.c_int(wanted))
    except PermissionError:
        _libc_call("unshare", ctypes.c_int(wanted | CLONE_NEWUSER))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "wb") as file:
                file.write(text.encode())


def private_mounts() -> None:
    """Keeps what this process mounts from now on to itself."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def mount_fresh(kind: str, path: str) -> None:
    """Mounts a new file system that holds neither programs, devices nor privileges.

    Args:
        kind: Such as ``tmpfs`` or ``proc``.
        path: Where.

    Raises:
        OSError: The system forbids it.
    """
    _mount(kind, path, kind, MS_NOSUID | MS_NODEV | MS_NOEXEC)


def cover(folder: str, keep: Iterable[str]) -> None:
    """Mounts an empty folder over one, in which only what is kept shows through, at its old place.

    Args:
        folder: What is covered, with the sockets in it.
        keep: Files and folders; those that lie elsewhere do not matter.

    Raises:
        OSError: The system forbids it.
    """
    inside = [path for path in keep if os.path.exists(path) and os.path.commonpath([folder, path]) == folder]
    descriptors = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in inside]
    try:
        mount_fresh("tmpfs", folder)
        for path, descriptor in zip(inside, descriptors, strict=True):
            source = f"/proc/self/fd/{descriptor}"
            if os.path.isdir(source):
                os.makedirs(path, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
            _mount(source, path, None, MS_BIND | MS_REC)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def restrict_files(
    readable: Iterable[str], writable: Sequence[str] = (), listable: Sequence[str] = (), *, prune: bool = False
) -> None:
    """Adds a Landlock layer: from now on, only these trees can be opened, and nothing executed.

    Network and signals to outside processes are refused too where the kernel's Landlock can (ABI 4 and 6).

    Args:
        readable: Files and directories that may be read, with all below. Missing ones are skipped.
        writable: Directories in which files may be made, changed and removed.
        listable: Directories whose names, and those of all below, may be listed.
        prune: Whether directories below the writable ones may be removed.
    """
    abi, files = confinement().landlock, file_rights()
    rules = [(path, READ & files) for path in readable]
    rules += [(path, (WRITE | REMOVE_DIR if prune else WRITE) & files) for path in writable]
    rules += [(path, READ_DIR) for path in listable]
    enforce(files, rules, network=3 if abi >= 4 else 0, scoped=3 if abi >= 6 else 0)


def file_rights() -> int:
    """Returns all rights on files that this kernel's Landlock knows, as bits."""
    abi = confinement().landlock
    return (1 << (13 if abi < 2 else 14 if abi < 3 else 15 if abi < 5 else 16)) - 1


def enforce(handled: int, rules: Iterable[tuple[str, int]], *, network: int = 0, scoped: int = 0) -> None:
    """Adds a Landlock layer: what is handled is refused but for the rules.

    Args:
        handled: Rights on files, as bits.
        rules: Trees and the rights granted below each. Missing ones are skipped.
        network: Rights on TCP, as bits (ABI 4).
        scoped: What may not reach outside processes, as bits (ABI 6).
    """
    abi = confinement().landlock
    attr = _RulesetAttr(handled, network, scoped)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _call(_number("landlock_create_ruleset"), ctypes.addressof(attr), size, 0)
    try:
        for path, access in rules:
            _allow(ruleset, path, access)
        _call(_number("landlock_restrict_self"), ruleset, 0)
    finally:
        os.close(ruleset)


def restrict_calls(program: bytes) -> None:
    """Installs a seccomp filter built by `whale_env.sandbox.syscalls.program`."""
    filters = _FilterProgram(len(program) // 8, program)
    _call(_number("seccomp"), SECCOMP_SET_MODE_FILTER, 0, ctypes.addressof(filters))


@dataclass(frozen=True, slots=True)
class Quota:
    """Hard resource limits of one process.

    Attributes:
        memory: Address space beyond what the process has already, in bytes.
        cpu: Processor time, in whole seconds; SIGXCPU then, SIGKILL a second later.
        file_size: Largest file, in bytes.
        files: Open descriptors.
    """

    memory: int
    cpu: int
    file_size: int = 0
    files: int = 32


def limit(quota: Quota, base: int) -> None:
    """Sets hard resource limits on this process.

    Args:
        quota: The limits.
        base: Address space in use before, in bytes.
    """
    wanted = {
        resource.RLIMIT_AS: quota.memory + base,
        resource.RLIMIT_CPU: quota.cpu + 1,
        resource.RLIMIT_FSIZE: quota.file_size,
        resource.RLIMIT_NOFILE: quota.files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_NPROC: 0,
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound - 1 if kind == resource.RLIMIT_CPU else bound, bound))


def address_space() -> int:
    """Returns this process's address space in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if not os.path.isdir(path):
            access &= OF_FILES
        rule = _PathBeneath(access, parent)
        _call(_number("landlock_add_rule"), ruleset, PATH_BENEATH, ctypes.addressof(rule), 0)
    finally:
        os.close(parent)


_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()
_libc = ctypes.CDLL(None, use_errno=True)
with contextlib.suppress(AttributeError):
    _libc.syscall.restype = ctypes.c_long


def _number(name: str) -> int:
    number = syscalls.NUMBERS[name][syscalls.ARCHITECTURES[os.uname().machine][0]]
    assert number is not None, name
    return number


def _call(number: int, *arguments: int) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *(ctypes.c_long(value) for value in arguments)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    texts = (ctypes.c_char_p(None if text is None else os.fsencode(text)) for text in (source, target, kind))
    _libc_call("mount", *texts, ctypes.c_ulong(flags), None)


def _libc_call(name: str, *arguments: object) -> None:
    if int(getattr(_libc, name)(*arguments)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _prctl(option: int, value: int = 0) -> int:
    padding = (ctypes.c_ulong(0),) * 3
    result = int(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), *padding))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
