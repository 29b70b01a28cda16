"""Rules on the raw text before it is parsed: characters, encoding, size; and the parsing, which never raises."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from harness_sdk.validator.allowed import MAX_BYTES
from harness_sdk.validator.report import Problem, shortened

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ufeff\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_NEWLINE = re.compile(r"\r\n|\r|\n")


def check_text(source: str) -> Iterator[Problem]:
    """Yields the problems of the raw text.

    Args:
        source: The source.
    """
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        fix = "shorten prompts and examples; a harness is a program, not a store of data"
        yield Problem(1, 1, "source-size", f"the source has {size} bytes; the bound is {MAX_BYTES}", fix)
        return
    if not source.isascii() or not source.isprintable():
        for number, line in enumerate(_NEWLINE.split(source), 1):
            for found in _FORBIDDEN.finditer(line):
                message = f"character U+{ord(found[0]):04X} may not stand in the source"
                fix = f"write it as an escape in a text: {ascii(found[0])[1:-1]}"
                yield Problem(number, found.start() + 1, "source-text", message, fix, line)
    for number, line in enumerate(_NEWLINE.split(source[:2000])[:2], 1):
        coding = _CODING.match(line)
        if coding and coding[1].lower().replace("_", "-") not in ("utf-8", "utf8"):
            message = f"the source declares the encoding {shortened(coding[1])!r}"
            yield Problem(number, 1, "source-text", message, "drop the line; a harness is utf-8", line)


def compile_only(module: ast.Module, source: str) -> Problem | None:
    """Compiles a parsed source without running it, for the errors that parsing alone does not see.

    Args:
        module: The parsed source, within its bounds.
        source: The source.

    Returns:
        The error (``return`` outside a function, a ``nonlocal`` without a binding, …), or None.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(module, "<harness>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return _syntax_error(error, _NEWLINE.split(source))
    except (ValueError, OverflowError) as error:
        return Problem(1, 1, "syntax-error", shortened(error, 200), "write plain utf-8 Python")
    return None


def _syntax_error(error: SyntaxError, lines: list[str]) -> Problem:
    line = min(max(error.lineno or 1, 1), len(lines))
    message = shortened(error.msg, 200)
    return Problem(line, max(error.offset or 1, 1), "syntax-error", message, "correct the syntax", lines[line - 1])


def parse(source: str) -> ast.Module | Problem:
    """Parses a source.

    Args:
        source: The source, within its size bound.

    Returns:
        The module, or why there is none.
    """
    lines = _NEWLINE.split(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        return _syntax_error(error, lines)
    except (RecursionError, MemoryError):
        fix = "split long expressions into several statements"
        return Problem(1, 1, "source-size", "the source nests too deep to be parsed", fix)
    except (ValueError, OverflowError) as error:
        return Problem(1, 1, "syntax-error", shortened(error, 200), "write plain utf-8 Python")
