"""The command line of all optimisers: flags generated from `RunConfig`, presets, dry runs, and one-line errors."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol, TextIO, TypeVar, get_args

import tyro

from optimizers.commands import interrupts
from optimizers.config import Inline, Method, Preset, RunConfig, checked, from_json, preset
from optimizers.config.flags import flag_of
from optimizers.run.display import outliving_readers
from whale_env.errors import InputError, WhaleError
from whale_env.strict_json import read_object

T = TypeVar("T")
Plan = list[tuple[str, int]]
"""Rollouts by unit of work: what it is called, and how many."""

CONTROL_EXAMPLES = """examples:
  python -m {module} --env chess                    as often as the laptop preset would score candidates
  python -m {module} --env chess --preset smoke     everything once
  python -m {module} --env chess --dry-run          what would be played, and how many rollouts
"""


@dataclass(frozen=True)
class _ControlFlags:
    config: Annotated[RunConfig, Inline] = field(default_factory=RunConfig)
    preset: Preset = "laptop"
    """Where the other flags take their defaults from."""
    dry_run: bool = False
    """Check what can be checked, print the settings as JSON and, on standard error, the rollout budget, and stop."""


def fail(message: str) -> NoReturn:
    """Prints one line and exits with code 2."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


@contextlib.contextmanager
def one_line_errors(stopped: Callable[[], str] = lambda: "stopped") -> Iterator[None]:
    """Turns the errors a user can cause (`WhaleError`) into one line and exit code 2, and a closed pipe into silence.

    Any other exception is a fault of the code and keeps its traceback.

    Args:
        stopped: Gives the line that is printed after Ctrl-C (exit code 130).
    """
    with outliving_readers(), interrupts.caught(), warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            yield
        except KeyboardInterrupt:
            print(stopped(), file=sys.stderr)
            raise SystemExit(130) from None
        except Exception as error:
            if os.environ.get("WHALE_TRACEBACK") or not isinstance(error, WhaleError):
                raise
            fail(str(error))


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints a warning as one line; where in the code it arose tells a user nothing."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def read_config(module: str, planned: Callable[[RunConfig], Plan]) -> RunConfig:
    """Reads off the command line what a control is to do; such a command trains nothing and keeps no run directory.

    Args:
        module: The module's name, for the help text.
        planned: Gives the rollouts that it would take; with ``--dry-run`` they are printed, and the process ends.
    """
    for argument in sys.argv[1:]:
        if (flag := argument.partition("=")[0]) in ("--out", "--resume"):
            fail(f"python -m {module} only prints its result and keeps no run directory; leave {flag} out")
    flags = parse_preset(_ControlFlags, module, CONTROL_EXAMPLES, "harness-only")
    config = checked(flags.config)
    if flags.dry_run:
        print_plan(config, planned(config), "nothing is written")
        raise SystemExit(0)
    return config


def print_plan(config: RunConfig, rows: Plan, end: str) -> None:
    """Prints a configuration (JSON, on standard output) and the rollouts it will take (on standard error).

    Args:
        config: It.
        rows: From `optimizers.run.whale.planned` or alike; a row that may take fewer says "at most".
        end: Added to the last line.
    """
    print(json.dumps(asdict(config), indent=2))
    for name, count in rows:
        print(f"{count:>9,} rollouts  {name}", file=sys.stderr)
    most = " at most" if any("at most" in name for name, _ in rows) else ""
    print(f"{sum(count for _, count in rows):>9,} rollouts in all{most}; {end}", file=sys.stderr)


class PresetFlags(Protocol):
    """Flags whose defaults a preset decides."""

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        ...


F = TypeVar("F", bound=PresetFlags)


def parse_preset(kind: type[F], module: str, examples: str, method: Method | None) -> F:
    """Parses a command line whose flags take their defaults from ``--preset``.

    Args:
        kind: A dataclass with the fields ``config`` and ``preset``.
        module: What ``python -m`` was given.
        examples: Shown under the help's first line, ``{module}`` filled in.
        method: A fixed method, or None to let ``--method`` decide.
    """
    arguments = sys.argv[1:]
    chosen = peek(arguments, "--preset", "laptop")
    if chosen not in get_args(Preset):
        fail(f"--preset {chosen!r} is not known; choose from {', '.join(get_args(Preset))}")
    default = _stored(arguments)
    if default is None:
        default = preset(chosen, peek(arguments, "--env", "chess"))  # type: ignore[arg-type]
        default = replace(default, method=method or default.method)
    # The preset decides the defaults, so it is read before the flags are.
    make: Callable[..., F] = kind
    defaults = make(config=default, preset=chosen)
    flags = parse(kind, module, examples.format(module=module), defaults, arguments)
    if method and flags.config.method != method:
        fail(f"python -m {module} takes no --method {flags.config.method}; for that use python -m optimizers.whale")
    return flags


def _stored(arguments: list[str]) -> RunConfig | None:
    """Returns what the run was given that is to be resumed, unless a preset is asked for: no flag is needed again."""
    out = peek(arguments, "--out", "")
    path = Path(out) / "config.json"
    if not out or "--resume" not in arguments or peek(arguments, "--preset", "") or not path.is_file():
        return None
    return from_json(RunConfig, read_object(path.read_text("utf-8"), str(path)), str(path))


def parse(
    flags: type[T], module: str, examples: str, default: T | None = None, arguments: list[str] | None = None
) -> T:
    """Parses a command line into a dataclass; a wrong flag is one line and exit code 2.

    Args:
        flags: The dataclass; its field docstrings are the help.
        module: What ``python -m`` was given.
        examples: Shown under the help's first line.
        default: Where defaults come from.
        arguments: The command line; None takes the process's.
    """
    about = (sys.modules["__main__"].__doc__ or "").split("\n\n")[0]
    text = f"{about}\n\n{examples}"
    captured = io.StringIO()
    try:
        with outliving_readers(), contextlib.redirect_stderr(captured):
            options: dict[str, Any] = {} if default is None else {"default": default}
            parsed: T = tyro.cli(flags, prog=f"python -m {module}", description=text, args=arguments, **options)
            return parsed
    except InputError as error:  # tyro leaves it alone where the flags of the group that refuses have no prefix
        setting, _, why = str(error).partition(" ")
        fail(f"--{setting.replace('_', '-')} {why} (see python -m {module} --help)")
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        said = _condensed(captured.getvalue())
        if refused := re.fullmatch(r"cannot read ([\w.]+): (\w+) ((?:is|must) .*)", said):
            path, setting, why = refused.groups()  # a group of settings refused one of its own
            said = f"{flag_of(flags, [*path.split('.'), setting])} {why}"
        fail(f"{said} (see python -m {module} --help)")


def peek(arguments: list[str], flag: str, default: str) -> str:
    """Returns what a command line gives for a flag, before it is parsed: what decides the defaults of others."""
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(flag + "="):
            return argument[len(flag) + 1 :]
    return default


_SENTENCES: tuple[tuple[str, Callable[[str, str], str]], ...] = (
    (r"Error parsing (\S+): invalid literal for int\(\) .*: ('.*')", "{} is {}; give a whole number".format),
    (r"Error parsing (\S+): could not convert string to float: (.*)", "{} is {}; give a number".format),
    (r"Error parsing (\S+): (.*)", "cannot read {}: {}".format),
    (
        r"[Ii]nvalid choice (.* for argument '\S+)'\. Expected one of \((.*)\)",
        lambda given, known: "{1} {0} is not known; choose from {2}".format(
            *given.split(" for argument '"), known.replace("'", "").removesuffix(",")
        ),
    ),
    (r"Missing value for argument '(\S+)'()\..*", "{} needs a value{}".format),
    (r"Unrecognized (options): (.*)", lambda _, unknown: f"unknown option {unknown.replace(',', '')}"),
)
"""What tyro says, in two groups, and the sentence that is made of it."""


def _condensed(text: str) -> str:
    """Returns a boxed error message as one sentence: what follows the title, and the likeliest of similar flags."""
    parts: list[list[str]] = [[]]  # the title, where the box is drawn in ASCII; then what rules part
    for line in text.splitlines():
        inner = line.strip("│ ")
        if inner.startswith(("╭", "╰")) or (inner and not inner.strip("─-")):
            parts.append([])
        elif inner:
            parts[-1].append(inner)
    said = re.sub(r"\s+", " ", " ".join(parts[1] if len(parts) > 1 else parts[0])).removesuffix(".")
    for pattern, sentence in _SENTENCES:
        if match := re.fullmatch(pattern, said):
            said = sentence(*match.groups())
            break
    near = next((part[1].split()[0] for part in parts if len(part) > 1 and part[0].startswith("Perhaps")), "")
    return said + (f". Did you mean {near}?" if near else "")
