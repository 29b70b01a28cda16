"""What a proposer's command can and cannot do, seen from a real one; and what is taken out of what it prints."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from optimizers.proposers.llm import confined
from optimizers.proposers.llm.secrets import redacted
from whale_env.sandbox import confinement, kernel

pytestmark = pytest.mark.skipif(not confinement().landlock, reason=confinement().why)
SCOPES = pytest.mark.skipif(confinement().landlock < 6, reason="needs Landlock's scopes (ABI 6)")

TRY = """
import ctypes, fcntl, json, multiprocessing, os, signal, socket, subprocess, sys, termios
from pathlib import Path
def caught(action):
    try:
        return action()
    except OSError as error:
        return type(error).__name__
def connected(address):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        return "connected"
arguments = sys.argv[1:]
"""


def tried(folder: Path, body: str, *arguments: str, read: Sequence[Path] = (), hidden: Sequence[Path] = ()) -> Any:
    """Runs a program that prints JSON, confined to a folder."""
    (folder / "program.py").write_text(TRY + body)
    program = [sys.executable, "-I", str(folder / "program.py"), *arguments]
    readable = [Path(sys.prefix), Path(sys.base_prefix), *read]
    done = subprocess.run(
        confined.command(program, readable, [folder], hidden),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(params=["namespaces", "Landlock alone"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be confined to, with namespaces and without."""
    if request.param == "Landlock alone":
        without = "from optimizers.proposers.llm import confined; confined._alone = lambda keep: False; confined.main()"
        monkeypatch.setattr(confined, "BOOT", f"import sys; sys.path.insert(0, sys.argv.pop(1)); {without}")
    return tmp_path


def test_it_has_no_privileges(place: Path) -> None:
    body = """
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([int(status[f"Cap{name}"], 16) for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
    + [int(status["NoNewPrivs"]), caught(lambda: os.chown("program.py", 12345, 12345)),
       caught(lambda: os.mknod("node", 0o20666, os.makedev(1, 3)))]))
"""
    *sets, bound, ambient, sealed, owner, node = tried(place, body)
    assert sets == [0, 0, 0] and ambient == 0 and sealed == 1
    assert bound == 0 or os.geteuid() != 0  # a user without privilege has none to gain, sealed as it is
    assert (owner, node) == ("PermissionError", "PermissionError")


def test_it_has_no_terminal_and_no_devices(place: Path) -> None:
    master, slave = pty.openpty()
    body = """
def typed(path):
    with open(path, "r+b", buffering=0) as terminal:
        fcntl.ioctl(terminal, termios.TIOCSTI, b"x")
devices = ["/dev/tty", "/dev/ptmx", "/dev/console", "/dev/kmsg", "/dev/full", "/dev/fuse"]
print(json.dumps([caught(lambda: typed(arguments[0])), caught(lambda: os.listdir("/dev/pts")),
    [caught(lambda: open(path, "rb").close()) for path in devices if os.path.exists(path)],
    [caught(lambda: open(path, "r+b").close()) for path in ("/dev/null", "/dev/zero", "/dev/urandom")]]))
"""
    try:
        typed, names, refused, open_ones = tried(place, body, os.ttyname(slave))
    finally:
        os.close(master)
        os.close(slave)
    assert (typed, names) == ("PermissionError", "PermissionError")
    assert set(refused) == {"PermissionError"} and open_ones == [None, None, None]


@SCOPES
def test_it_reaches_no_other_process(place: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={"CANARY": "value"}) as other, socket.socket(socket.AF_UNIX) as server:
        name = f"whale-test-{os.getpid()}"
        server.bind(f"\0{name}")
        server.listen()
        body = """
pid, name = int(arguments[0]), arguments[1]
child = subprocess.Popen(["sleep", "60"])
child.terminate()
print(json.dumps([caught(lambda: os.kill(pid, signal.SIGTERM)), caught(lambda: os.kill(os.getppid(), signal.SIGTERM)),
    caught(lambda: Path(f"/proc/{pid}/environ").read_text()), caught(lambda: connected("\\0" + name)), child.wait()]))
"""
        try:
            killed, parent, environment, abstract, own = tried(place, body, str(other.pid), name)
            assert other.poll() is None
        finally:
            other.kill()
    gone = {"PermissionError", "ProcessLookupError", "FileNotFoundError"}
    assert {killed, parent, environment} <= gone and abstract == "PermissionError"
    assert own == -signal.SIGTERM


def _namespaces() -> bool:
    child = os.fork()
    if not child:
        try:
            kernel.new_namespaces()
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_its_shared_memory_and_sockets_are_its_own(tmp_path: Path) -> None:
    if not _namespaces():
        pytest.skip("this system forbids namespaces")
    mark = f"/dev/shm/whale-test-{os.getpid()}"
    listening = f"/tmp/whale-test-{os.getpid()}"
    body = """
mark, listening = arguments
print(json.dumps([os.path.exists(mark), caught(lambda: connected(listening)), os.listdir("/dev/shm"),
    [caught(lambda: Path(folder, "made").write_text("x")) for folder in ("/dev/shm", ".", "/tmp")],
    [int(name) for name in os.listdir("/proc") if name.isdigit()], bool(multiprocessing.Lock())]))
"""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(listening)
        server.listen()
        Path(mark).touch()
        try:
            seen, reached, names, made, processes, lock = tried(tmp_path, body, mark, listening)
        finally:
            os.unlink(mark)
            os.unlink(listening)
    assert (seen, reached, names, made, lock) == (False, "FileNotFoundError", [], [1, 1, "PermissionError"], True)
    assert max(processes) <= 3 or len(processes) > 3  # the second where a container covers parts of its own /proc
    assert (tmp_path / "made").exists() and not os.path.exists("/dev/shm/made")


def test_without_namespaces_it_shares_no_memory(tmp_path: Path, place: Path, request: pytest.FixtureRequest) -> None:
    if "Landlock alone" not in request.node.name:
        pytest.skip("covered above")
    body = """
print(json.dumps([caught(lambda: Path(folder, "made").write_text("x")) for folder in ("/dev/shm", "/tmp")]))
"""
    assert tried(place, body) == ["PermissionError", "PermissionError"]


def test_what_it_left_running_ends_with_it(tmp_path: Path) -> None:
    if not _namespaces():
        pytest.skip("this system forbids namespaces")
    body = """
subprocess.Popen(["sh", "-c", "while :; do date +%s%N > alive; sleep 0.05; done"], start_new_session=True,
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not os.path.exists("alive"):
    pass
print("null")
"""
    tried(tmp_path, body)
    time.sleep(0.3)
    last = (tmp_path / "alive").read_bytes()
    time.sleep(0.5)
    assert (tmp_path / "alive").read_bytes() == last


def test_its_status_is_passed_on(place: Path) -> None:
    def ended(program: list[str]) -> int:
        command = confined.command(program, [], [place], [])
        return subprocess.run(command, cwd=place, capture_output=True, check=False).returncode

    assert ended(["sh", "-c", "exit 7"]) == 7
    assert ended(["sh", "-c", "kill -9 $$"]) in (-9, 137)
    assert ended(["/no/such/program"]) == 1


def test_this_package_and_hidden_trees_cannot_be_read(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    tree = tmp_path_factory.mktemp("tree")
    for name in ("shown", "hidden"):
        (tree / name).mkdir()
        (tree / name / "file").write_text("x")
    body = """
print(json.dumps([caught(lambda: Path(path).read_text()) for path in arguments]))
"""
    paths = [str(tree / "shown" / "file"), str(tree / "hidden" / "file"), confined.__file__]
    found = tried(place, body, *paths, read=[tree], hidden=[tree / "hidden"])
    assert found[0] == "x" and found[1] == "PermissionError"
    assert found[2] in ("PermissionError", "FileNotFoundError")


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs the superuser")
def test_it_holds_for_a_user_without_privilege(tmp_path: Path) -> None:
    """The program is a shell, since this interpreter may lie where only its owner can read."""
    script = """
        cat /proc/1/environ; echo x > /dev/tty; kill -15 $1; echo done > out
        grep -c 'NoNewPrivs:.1' /proc/self/status
    """
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    with subprocess.Popen(["sleep", "60"], user=65534) as other:
        arguments = json.dumps([[], [str(tmp_path)], [], os.getpid()])
        child = os.fork()
        if not child:
            try:
                os.chdir(tmp_path)
                os.dup2(os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR, 0o666), 1)
                os.dup2(1, 2)
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                ctypes.CDLL(None).prctl(4, 1)  # dumpable again, as after an exec: /proc/self belongs to this user
                sys.argv = ["confined", arguments, "sh", "-c", script, "sh", str(other.pid)]
                confined.main()
            except BaseException:
                traceback.print_exc()
            os._exit(99)
        _, status = os.waitpid(child, 0)
        log = (tmp_path / "log").read_text()
        try:
            assert (os.waitstatus_to_exitcode(status), other.poll()) == (0, None), log
        finally:
            other.kill()
    assert (tmp_path / "out").read_text() == "done\n" and log.endswith("1\n") and "environ" in log and "tty" in log


KEY = "sk-ant-Zz9+/=?key&1234ü"


@pytest.mark.parametrize(
    "said",
    [
        KEY,
        quote(KEY, safe=""),
        re.sub("%..", lambda found: found[0].lower(), quote(KEY, safe="")),
        "".join(f"%{byte:02x}" for byte in KEY.encode()),
        KEY.encode().hex(),
        KEY.encode().hex(":").upper(),
        json.dumps(KEY),
        *(base64.b64encode(b"x" * before + KEY.encode() + b"tail").decode() for before in range(5)),
        *(base64.urlsafe_b64encode(b"x" * before + KEY.encode()).decode().rstrip("=") for before in range(3)),
        base64.encodebytes(b"x" * 47 + KEY.encode()).decode(),
    ],
)
def test_a_key_is_found_however_it_is_written(said: str) -> None:
    found = redacted(f"before {said} after", {"SOME_API_KEY": KEY, "PATH": "/usr/bin"})
    assert found.startswith("before ") and found.endswith(" after") and "[secret]" in found
    if "x" not in said[:1] and said.startswith(KEY[:3]):
        assert found == "before [secret] after"


def test_passwords_in_urls_are_secrets_and_short_values_are_not() -> None:
    environment = {"HTTPS_PROXY": "http://me:pass%2Fword1@proxy:3128", "TOKEN": "short", "URL": "http://[bad"}
    assert redacted("pass/word1 pass%2Fword1 short http", environment) == "[secret] [secret] short http"
    assert redacted("nothing here", {}) == "nothing here"
