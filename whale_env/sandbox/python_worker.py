"""What runs inside a `run_python` worker: one program, as a notebook cell would run it.

It is as exposed as the program itself, which can change all of it; nothing that it reports is believed beyond the
program's own status. Limits and confinement are in place before it starts (`whale_env.sandbox.zygote`).
"""

from __future__ import annotations

import ast
import builtins
import io
import linecache
import os
import random
import sys
import traceback
from types import CodeType, ModuleType
from typing import Any, BinaryIO, cast

NAME = "<python>"
"""File name of the program in tracebacks."""

OUTPUT_BYTES = 65536
"""Kept of stdout and of stderr, each."""


def warm() -> None:
    """Has sympy load what it would load upon first use, once for all workers; its caches are left empty."""
    import sympy

    x, y = sympy.symbols("x y")
    sympy.solve([x + y - 3, x - y - 1], [x, y])
    sympy.integrate(x * sympy.sin(x), x)
    sympy.simplify((x**2 - 1) / (x - 1))
    sympy.series(sympy.exp(x), x, 0, 3)
    sympy.nsolve(sympy.cos(x) - x, 1)
    sympy.lambdify(x, x**2, "numpy")(3)
    sympy.core.cache.clear_cache()


def main(wire: int, job: dict[str, Any]) -> None:
    """Runs the program that the wire brings and writes one word there: ``ok``, ``error`` or ``memory``."""
    source = _read(wire, int(job["size"]))
    sys.stdout, sys.stderr = _output(1), _output(2)
    random.seed(0)  # the same program prints the same, whoever asks
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # as the site module does
    try:
        status = _run(source.decode("utf-8", "surrogatepass"))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(wire, status.encode())
    os._exit(0)  # neither atexit functions nor finalizers run on after the answer


def _run(source: str) -> str:
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    try:
        body, last = _compile(source)
        exec(body, module.__dict__)
        if last is not None:
            value = eval(last, module.__dict__)
            if value is not None:
                print(repr(value))
    except SystemExit as request:
        if request.code is None or request.code == 0:
            return "ok"
        if not isinstance(request.code, int):
            print(request.code, file=sys.stderr)
        return "error"
    except BaseException as error:
        _report(error)
        return "memory" if isinstance(error, MemoryError) else "error"
    return "ok"


def _compile(source: str) -> tuple[CodeType, CodeType | None]:
    """Splits off a last expression, whose value is shown as in a notebook."""
    tree = ast.parse(source, NAME)
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return compile(tree, NAME, "exec"), None
    last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    return compile(tree, NAME, "exec"), compile(last, NAME, "eval")


def _report(error: BaseException) -> None:
    """Prints a traceback of the program's own frames."""
    try:
        report = traceback.TracebackException.from_exception(error, compact=True)
        pending = [report]
        while pending:
            item = pending.pop()
            item.stack = traceback.StackSummary.from_list([frame for frame in item.stack if frame.filename == NAME])
            pending += [chained for chained in (item.__cause__, item.__context__) if chained is not None]
        text = "".join(report.format())
    except BaseException:  # a hostile or exhausted program breaks even this
        text = f"{type(error).__name__}\n"
    print(text, end="", file=sys.stderr)


class _Bounded(io.RawIOBase):
    """A descriptor that takes one byte more than is kept, so that the reader sees the cut, and swallows the rest."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._left = OUTPUT_BYTES + 1

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        kept = memoryview(data)[: self._left]
        while kept:
            sent = os.write(self._descriptor, kept)
            self._left -= sent
            kept = kept[sent:]
        return len(data)


def _output(descriptor: int) -> io.TextIOWrapper:
    raw = cast(BinaryIO, _Bounded(descriptor))  # unbuffered: what was printed stays, however the program ends
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


def _read(wire: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(wire, size - len(data))
        if not chunk:
            os._exit(1)
        data += chunk
    return bytes(data)
