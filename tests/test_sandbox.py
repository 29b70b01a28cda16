"""`run_python`: what programs print, how they end, and what hostile ones cannot reach. Skips where nothing confines."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from whale_env.sandbox import ConfinementError, Result, confinement, kernel, python_tool, run_python
from whale_env.sandbox.kernel import Confinement
from whale_env.sandbox.syscalls import ALLOWED, ARCHITECTURES, NUMBERS, program

SHARED = Path(os.environ.get("WHALE_SHARED", Path(__file__).parents[2] / "shared")) / "cases"
confined = pytest.mark.skipif(not confinement().available, reason=confinement().why)


def rows(name: str) -> list[dict[str, str]]:
    path = SHARED / name
    return [json.loads(line) for line in path.read_text("utf-8").strip("\n").split("\n")] if path.exists() else []


# --- what a program shows ---------------------------------------------------------------------------------------------


@confined
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1 + 1", ("2\n", "", "ok")),
        ("x = 3", ("", "", "ok")),
        ("None", ("", "", "ok")),
        ("", ("", "", "ok")),
        ("print('a')\n'b'", ("a\n'b'\n", "", "ok")),
        ("for i in range(2): print(i)", ("0\n1\n", "", "ok")),
        ("if __name__ == '__main__':\n    print('main')", ("main\n", "", "ok")),
        ("import sympy\nsympy.solve(sympy.Symbol('x')**2 - 2)", ("[-sqrt(2), sqrt(2)]\n", "", "ok")),
        ("import numpy as np\nint(np.arange(5).sum())", ("10\n", "", "ok")),
        ("import numpy as np\nprint((np.ones((200, 200)) @ np.ones((200, 200)))[0, 0])", ("200.0\n", "", "ok")),
        ("with open('notes.txt', 'w') as f: f.write('x')\nopen('notes.txt').read()", ("'x'\n", "", "ok")),
        ("import os\nos.listdir('.')", ("[]\n", "", "ok")),
        ("import os\ndict(os.environ)", ("{}\n", "", "ok")),
        ("import sys\nprint('o'); print('e', file=sys.stderr)", ("o\n", "e\n", "ok")),
        ("print('\\ud800')", ("\\ud800\n", "", "ok")),
        ("print('\\x00')", ("\x00\n", "", "ok")),
        ("def f(n): return 1 if n == 0 else n * f(n - 1)\nf(500) > 0", ("True\n", "", "ok")),
        ("exit()", ("", "", "ok")),
        ("import sys\nprint('said')\nsys.exit(0)", ("said\n", "", "ok")),
        ("exit('why')", ("", "why\n", "error")),
        ("exit(3)", ("", "", "error")),
        ("import os\nos._exit(0)", ("", "", "killed")),
        ("import atexit\natexit.register(print, 'late')\nprint('now')", ("now\n", "", "ok")),
        ("class X:\n    __del__ = lambda s: print('late')\nkeep = X()", ("", "", "ok")),
        ("input()", ("", None, "error")),
        ("raise KeyboardInterrupt", ("", None, "error")),
        ("x = 'a' * 10**10", ("", None, "memory")),
        ("open('/dev/zero').read()", ("", None, "error")),
        ("def f(): f()\nf()", ("", None, "error")),
        ("x = \x00", ("", None, "error")),
        ("'\ud800' + ", ("", None, "error")),
        ("import threading\nthreading.Thread(target=print).start()", ("", None, "error")),
    ],
)
def test_results(code: str, expected: tuple[str, str | None, str]) -> None:
    result = run_python(code)
    stdout, stderr, status = expected
    assert (result.stdout, result.status) == (stdout, status), result
    if stderr is not None:
        assert result.stderr == stderr


@confined
def test_a_warning_does_not_lose_stdout() -> None:
    result = run_python("import warnings\nwarnings.warn('careful')\nprint('answer')")
    assert result.stdout == "answer\n"
    assert "UserWarning: careful" in result.stderr
    assert result.status == "ok"


@confined
def test_output_before_an_error_stays() -> None:
    result = run_python("print('before')\n1 / 0")
    assert result.stdout == "before\n"
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert result.status == "error"


@confined
def test_traceback_shows_the_program_only() -> None:
    result = run_python(
        "import sympy\ndef g():\n    return sympy.sympify('1 +')\ntry:\n    g()\nexcept Exception:\n    1/0"
    )
    assert 'File "<python>", line 5' in result.stderr
    assert "1/0" in result.stderr
    assert os.sep + "sympy" not in result.stderr
    assert "python_worker" not in result.stderr


@confined
@pytest.mark.parametrize(
    "write", ["print('x' * 300_000)", "import os\nos.write(1, b'x' * 60_000)\nos.write(1, b'x' * 60_000)"]
)
def test_long_output_is_cut_and_marked(write: str) -> None:
    result = run_python(write + "\nimport sys\nprint('end', file=sys.stderr)")
    assert result.stdout == "x" * 65536 + python_tool.CUT
    assert result.stderr == "end\n"
    assert result.status == "ok"


@confined
def test_a_flood_is_stopped() -> None:
    result = run_python("import os\nwhile True: os.write(1, b'x' * 60_000)", timeout=20)
    assert result.status == "killed"
    assert len(result.stdout) < 70_000


@confined
@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
        "import signal\nfor n in (1, 2, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        "import time\ntime.sleep(60)",
        "10 ** 10 ** 9",
        "class X:\n    def __repr__(self):\n        while True: pass\nX()",
    ],
)
def test_endless_programs_time_out(code: str) -> None:
    start = time.monotonic()
    assert run_python("print('begun')\n" + code, timeout=0.5).status == "timeout"
    assert time.monotonic() - start < 30


@confined
def test_programs_share_nothing() -> None:
    poison = "import math, json, sympy\nmath.sqrt = sympy.solve = json.dumps = lambda *a: 42\nopen('f', 'w').write('x')"
    assert run_python(poison).status == "ok"
    assert run_python("import math, os\nmath.sqrt(4), os.listdir('.')").stdout == "(2.0, [])\n"


@confined
def test_programs_at_once_cannot_reach_each_other() -> None:
    with ThreadPoolExecutor(1) as pool:
        victim = pool.submit(
            run_python, "import os, time\nopen('mine', 'w').write('x')\ntime.sleep(1)\nopen('mine').read()"
        )
        scratch = python_tool._runner(False).scratch
        while not (found := list(Path(scratch).glob("*/mine"))):
            time.sleep(0.01)
        for attack in (
            f"open({str(found[0])!r}).read()",
            f"open({str(found[0])!r}, 'w')",
            f"import os\nos.remove({str(found[0])!r})",
        ):
            assert "PermissionError" in run_python(attack).stderr
        assert victim.result().stdout == "'x'\n"


@confined
def test_disk_is_bounded() -> None:
    code = (
        "import time\nfor n in range(20):\n    with open(str(n), 'wb') as f: f.write(bytes(8_000_000))\ntime.sleep(9)"
    )
    assert run_python(code).status == "killed"


@confined
def test_randomness_repeats() -> None:
    code = "import random, numpy\nrandom.random(), float(numpy.random.rand()), hash('a')"
    assert run_python(code) == run_python(code)


@confined
def test_64_at_once_from_threads() -> None:
    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(lambda n: run_python(f"import sympy\nprint(sympy.Integer({n}) ** 2)"), range(64)))
    assert [result.stdout for result in results] == [f"{n * n}\n" for n in range(64)]


@confined
def test_nothing_is_left_behind() -> None:
    runner = python_tool._runner(False)
    run_python("open('notes', 'w').write('x' * 1000)")
    run_python("open('notes', 'w').write('x' * 1000)\nwhile True: pass", timeout=0.3)
    assert os.listdir(runner.scratch) == []
    process = runner.zygote._process
    assert process is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children == []


@confined
def test_a_dead_zygote_is_replaced() -> None:
    assert run_python("1").status == "ok"
    process = python_tool._runner(False).zygote._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while run_python("1").status != "ok":
        assert time.monotonic() < deadline


@confined
def test_a_dying_zygote_takes_its_workers_along() -> None:
    process = python_tool._runner(False).zygote._process
    assert process is not None
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(run_python("while True: pass", timeout=1.5)))
    thread.start()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (workers := children.read_text().split()):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    thread.join(120)
    assert [result.status for result in results] == ["timeout"]  # the program was begun anew
    deadline = time.monotonic() + 60
    while any(
        Path(f"/proc/{pid}/statm").exists() and Path(f"/proc/{pid}/statm").read_text()[0] != "0" for pid in workers
    ):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("limits", [{"timeout": 0}, {"timeout": float("nan")}, {"memory_mb": 0}, {"memory_mb": 1.5}])
def test_senseless_limits_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be a"):
        run_python("1", **limits)  # type: ignore[arg-type]


def test_without_confinement_it_is_refused_or_runs_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "confinement", lambda: Confinement(False, "this kernel offers no Landlock"))
    monkeypatch.setattr(python_tool, "_runners", {})
    with pytest.raises(ConfinementError, match=r"no Landlock.*--allow-uncaged"):
        run_python("1")
    assert run_python("1 + 1", allow_uncaged=True).stdout == "2\n"
    assert run_python("x = 'a' * 10**10", allow_uncaged=True).status == "memory"
    python_tool._close()


# --- what a program cannot reach --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Canaries:
    """Things outside that must stay unread, unwritten, uncontacted."""

    secret: Path
    word: str
    outside: Path
    listener: socket.socket
    abstract: str

    def check(self, result: Result) -> None:
        assert self.word not in result.stdout + result.stderr
        assert not self.outside.exists()
        with pytest.raises(BlockingIOError):
            self.listener.accept()
        assert "uid=" not in result.stdout + result.stderr


@pytest.fixture
def canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canaries]:
    word = "canary-7f3a"
    secret = tmp_path / "secret"
    secret.write_text(word)
    monkeypatch.setenv("WHALE_SECRET", word)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield Canaries(secret, word, tmp_path / "out", listener, "")


@confined
@pytest.mark.parametrize("row", rows("pyjail.jsonl"), ids=lambda row: row["id"])
def test_known_escapes(row: dict[str, str], canaries: Canaries) -> None:
    result = run_python(row["payload"], timeout=2, memory_mb=256)
    canaries.check(result)
    assert "root:" not in result.stdout + result.stderr


@confined
@pytest.mark.parametrize("row", rows("pyjail_benign.jsonl"), ids=lambda row: row["id"])
def test_ordinary_programs(row: dict[str, str]) -> None:
    result = run_python(row["code"])
    assert result.status == "ok", result
    assert result.stderr == ""


ATTACKS = """
print(open(SECRET).read())
import os; print(os.read(os.open(SECRET, os.O_RDONLY), 99))
import os; os.symlink(SECRET, 'link'); print(open('link').read())
import os; os.link(SECRET, 'link'); print(open('link').read())
import os; os.rename(SECRET, 'here'); print(open('here').read())
import os; print(os.listdir(os.path.dirname(SECRET)))
import os; print(os.listdir('..'))
import os; os.mkdir('sub')
import os; os.rmdir(os.getcwd())
import os; os.rename(os.getcwd(), OUT)
import os; os.chdir('/')
import os; print(os.readlink('/proc/self/cwd'))
print(open('/proc/self/environ').read())
import os; print(open(f'/proc/{os.getppid()}/environ').read())
open(OUT, 'w').write('x')
import os; os.mkdir(OUT)
import os; os.mkfifo(OUT)
import os; os.chmod(SECRET, 0o777)
import os; os.utime(SECRET, (1, 1))
import os; os.truncate(SECRET, 0)
import os; os.open(SECRET, os.O_RDONLY | os.O_TRUNC)
import os; os.remove(SECRET)
import os; os.chown(SECRET, 1, 1)
import os; os.setxattr(SECRET, 'user.x', b'1')
import os; os.chroot('/')
import socket; socket.create_connection(('127.0.0.1', PORT))
import socket; socket.socket(socket.AF_UNIX)
import socket; socket.socketpair()
import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))
import socket; s = socket.socket(fileno=3); s.connect(('127.0.0.1', PORT))
import os; os.fork()
import os; os.posix_spawn('/bin/sh', ['sh', '-c', 'id'], {})
import os; os.execv('/bin/sh', ['sh', '-c', 'id'])
import ctypes; raise SystemExit(ctypes.CDLL(None).system(b'id') or 'ran')
import os; os.kill(PARENT, 9)
import os; os.kill(-1, 9)
import os; os.kill(os.getppid(), 9)
import os; os.killpg(0, 9)
import signal, os; signal.pidfd_send_signal(os.pidfd_open(PARENT), 9)
import os; os.memfd_create('x')
import os; os.unshare(0x10000000)
import os; os.setns(0, 0)
import os; os.nice(-5)
import os; os.sched_setaffinity(0, {0})
import os; os.eventfd(0)
import os; os.open('.', os.O_TMPFILE | os.O_WRONLY)
import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))
import resource; resource.prlimit(PARENT, resource.RLIMIT_CPU, (1, 1))
import mmap; mmap.mmap(-1, 10**10)
import _posixsubprocess, multiprocessing; multiprocessing.Process(target=print).start()
import multiprocessing.shared_memory as m; m.SharedMemory(create=True, size=9)
f = open('big', 'wb'); [f.write(b'x' * 10**6) for _ in range(100)]
import os; [os.open('f', os.O_CREAT) for _ in range(10**6)]
import os, time; [open(str(n), 'w').close() for n in range(5000)]; time.sleep(30); raise ValueError
""".strip().splitlines()

RAW_CALLS = {
    "ptrace": (101, 16),
    "process_vm_readv": (310, 99),
    "process_vm_writev": (311, 99),
    "io_uring_setup": (425, 8),
    "userfaultfd": (323, 0),
    "bpf": (321, 0),
    "perf_event_open": (298, 0),
    "keyctl": (250, 0),
    "add_key": (248, 0),
    "open_by_handle_at": (304, 0),
    "execveat": (322, 0),
    "clone": (56, 0x10000000),
    "clone3": (435, 0),
    "vfork": (58, 0),
    "socket": (41, 1),
    "unshare": (272, 0),
    "mount": (165, 0),
    "prctl": (157, 1),
    "rt_sigqueueinfo": (129, 0),
    "tgkill": (234, 0),
    "seccomp": (317, 0),
    "openat2": (437, 0),
    "shmget": (29, 0),
    "msgget": (68, 0),
    "inotify_init1": (294, 0),
    "timer_create": (222, 0),
    "personality": (135, 0),
    "setsid": (112, 0),
    "landlock_create_ruleset": (444, 0),
}


@confined
@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_fail(attack: str, canaries: Canaries) -> None:
    port = canaries.listener.getsockname()[1]
    names = f"SECRET, OUT, PORT, PARENT = {str(canaries.secret)!r}, {str(canaries.outside)!r}, {port}, {os.getpid()}\n"
    before = canaries.secret.stat()
    result = run_python(names + attack, timeout=5)
    canaries.check(result)
    assert result.status != "ok", result
    after = canaries.secret.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_size) == (before.st_mode, before.st_mtime_ns, before.st_size)


@confined
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86-64")
def test_system_calls_outside_the_list_are_refused() -> None:
    code = f"""
import ctypes, errno
call = ctypes.CDLL(None, use_errno=True).syscall
for name, (number, argument) in {RAW_CALLS!r}.items():
    if call(number, argument, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print(name, ctypes.get_errno())
"""
    assert run_python(code) == Result("", "", "ok")


@confined
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calling conventions of x86-64")
@pytest.mark.parametrize("code", ["b814000000cd80c3", "b8270000400f05c3"], ids=["32 bits", "x32"])
def test_other_calling_conventions_are_no_way_out(code: str) -> None:
    call = f"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex({code!r}))  # load the number of getpid, call the kernel, return
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""
    assert run_python(call) == Result("", "", "killed")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_filters_are_well_formed(machine: str) -> None:
    for role in ALLOWED:
        filters = program(role, machine)
        assert len(filters) % 8 == 0
        assert len(filters) // 8 <= 4096
    column = ARCHITECTURES[machine][0]
    numbers = [pair[column] for pair in NUMBERS.values() if pair[column] is not None]
    assert len(numbers) == len(set(numbers))
