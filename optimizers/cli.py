"""The command line of all optimisers: flags generated from `RunConfig`, presets, dry runs, and one-line errors."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args

import tyro

from optimizers.config import Method, Preset, RunConfig, checked, preset

T = TypeVar("T")

EXAMPLES = """examples:
  python -m {module} --env chess                                  the laptop preset: minutes on two cores
  python -m {module} --env chess --preset smoke                   everything once, about a minute
  python -m {module} --env chess --seed 1 --out runs/mine         another seed, a named run directory
  python -m {module} --env chess --out runs/mine --seed 1 --resume  go on with it
  python -m {module} --env chess --harness my_harness.py:Mine     begin from a harness of your own
  python -m {module} --env my_package:MyEnv-v0 --dry-run          what would run, and how many rollouts
"""


@dataclass(frozen=True)
class _Flags:
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)
    preset: Preset = "laptop"
    """Where the other flags take their defaults from."""
    out: Path | None = None
    """Run directory. Default: runs/<env>-<method>-s<seed>-<time>."""
    resume: bool = False
    """Go on with the run in --out."""
    dry_run: bool = False
    """Print the resolved plan and the rollout budget, and stop."""


def fail(message: str) -> NoReturn:
    """Prints one line and exits with code 2."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns the errors a user can cause into one line and exit code 2."""
    from harness_sdk.loader import HarnessLoadError
    from harness_sdk.models import ModelNotFoundError
    from harness_sdk.policies import PolicyError
    from optimizers.rundir import RunDirError
    from whale_env.core import UnknownTaskError
    from whale_env.registry import UnknownEnvError

    known = (
        *(
            HarnessLoadError,
            ModelNotFoundError,
            PolicyError,
            RunDirError,
            UnknownEnvError,
            UnknownTaskError,
            ValueError,
        ),
        ImportError,
    )
    try:
        yield
    except known as error:
        if os.environ.get("WHALE_TRACEBACK"):
            raise
        fail(str(error))
    except KeyboardInterrupt:
        print("stopped; what is finished is kept. Give the same command with --resume to go on.", file=sys.stderr)
        raise SystemExit(130) from None


def run_command(module: str, method: Method | None = None) -> None:
    """Parses the command line and runs an optimiser.

    Args:
        module: The module's name, for the help text.
        method: A fixed method, or None to let ``--method`` decide.
    """
    from optimizers import whale

    flags = _parse(module, sys.argv[1:], method)
    with one_line_errors():
        config = checked(flags.config)
        from whale_env.registry import handle

        env = handle(config.env, _env_args(config.env_args))
        rows = whale.planned(config, len(env.tasks("train")[: config.train_tasks or None]))
        out = flags.out or _default_out(config)
        if flags.dry_run:
            print(json.dumps(asdict(config), indent=2))
            for name, count in rows:
                print(f"{count:>9,} rollouts  {name}")
            print(f"{sum(count for _, count in rows):>9,} rollouts in all; run directory {out}")
            return
        if flags.resume and flags.out is None:
            fail("--resume needs --out: the directory of the run to go on with")
        result = whale.start(config, env, out, resume=flags.resume)
        from optimizers.display import print_result

        print_result(result, str(out), _follow_up(out, result))


def read_config(module: str) -> RunConfig:
    """Reads a run's configuration off the command line, for commands that do something else with it."""
    return _parse(module, sys.argv[1:], None).config


def _parse(module: str, arguments: list[str], method: Method | None) -> _Flags:
    chosen = _peek(arguments, "--preset", "laptop")
    if chosen not in get_args(Preset):
        fail(f"--preset {chosen!r} is not known; choose from {', '.join(get_args(Preset))}")
    default = preset(chosen, _peek(arguments, "--env", "chess"))  # type: ignore[arg-type]
    if method:
        default = replace(default, method=method)
    # The preset decides the defaults, so it is read before the flags are.
    flags = _Flags(config=default, preset=chosen)  # type: ignore[arg-type]
    return parse(_Flags, module, EXAMPLES.format(module=module), flags, arguments)


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
        with contextlib.redirect_stderr(captured):
            options: dict[str, Any] = {} if default is None else {"default": default}
            parsed: T = tyro.cli(flags, prog=f"python -m {module}", description=text, args=arguments, **options)
            return parsed
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        fail(_condensed(captured.getvalue()) + f" (see python -m {module} --help)")


def _peek(arguments: list[str], flag: str, default: str) -> str:
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(flag + "="):
            return argument[len(flag) + 1 :]
    return default


def _condensed(text: str) -> str:
    """Returns a boxed error message as one line."""
    lines = [re.sub(r"[│╭╮╰╯─]+", " ", line).strip() for line in text.splitlines()]
    words = " ".join(line for line in lines if line and not line.startswith("For full helptext"))
    words = words.replace("Parsing error", "").replace("Unrecognized options ", "")
    return re.sub(r"\s+", " ", words).strip()


def _env_args(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--env-args must be a JSON object, not {text!r}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"--env-args must be a JSON object, not {text!r}")
    return value


def _default_out(config: RunConfig) -> Path:
    env = re.sub(r"[^A-Za-z0-9]+", "-", config.env).strip("-")
    return Path("runs") / f"{env}-{config.method}-s{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


def _follow_up(out: Path, result: dict[str, Any]) -> list[str]:
    return [
        f"look at it:   less {out}/harnesses/{result['harness']}/harness.py (and {out}/harnesses/index.md)",
        f"measure more: python -m optimizers.evaluate --run {out} --tasks 128",
    ]
