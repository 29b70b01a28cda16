"""The commands that optimise: ``python -m optimizers.whale``, ``rsft`` and ``meta_harness``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join, quote
from typing import Annotated

from optimizers.commands.cli import fail, one_line_errors, parse_preset, print_plan
from optimizers.config import Inline, Method, Preset, RunConfig, checked, require_data

EXAMPLES = """examples:
  python -m {module} --env chess                                  the laptop preset: minutes on two cores
  python -m {module} --env chess --preset smoke                   everything once, about a minute
  python -m {module} --env chess --seed 1 --out runs/mine         another seed, a named run directory
  python -m {module} --out runs/mine --resume                     go on with it
  python -m {module} --env chess --harness my_harness.py:Mine     begin from a harness of your own
  python -m {module} --env my_package:MyEnv-v0 --dry-run          what would run, and how many rollouts
"""


@dataclass(frozen=True)
class _Flags:
    config: Annotated[RunConfig, Inline] = field(default_factory=RunConfig)
    preset: Preset = "laptop"
    """Where the other flags take their defaults from."""
    out: Path | None = None
    """Run directory. Default: runs/<env>-<method>-s<seed>-<time>."""
    resume: bool = False
    """Go on with the run in --out."""
    dry_run: bool = False
    """Check what can be checked, print the settings as JSON and, on standard error, the rollout budget, and stop."""


def run_command(module: str, method: Method | None = None) -> None:
    """Parses the command line and runs an optimiser.

    Args:
        module: The module's name, for the help text.
        method: A fixed method, or None to let ``--method`` decide.
    """
    out: Path | None = None

    def stopped() -> str:
        if out is None or not (out / "config.json").is_file():
            return "stopped; nothing was finished"
        return f"stopped; what is finished is kept. Give --out {quote(str(out))} --resume to go on."

    with one_line_errors(stopped):
        flags = parse_preset(_Flags, module, EXAMPLES, method)
        config = checked(flags.config)
        from optimizers.run.plan import optimised, planned, require_tasks, too_short
        from whale_env.registry import arguments_from, handle

        require_data(config)
        env = handle(config.env, arguments_from(config.env_args))
        require_tasks(config, env)
        if flags.resume and flags.out is None:
            fail("--resume needs --out: the directory of the run to go on with")
        from optimizers.run.start import default_out, fit, require_writable, start

        out = flags.out or default_out(config)
        if flags.dry_run:
            h0, _ = fit(config, env)
            require_writable(out)
            if note := too_short(config, env, h0):
                print(f"note: {note}", file=sys.stderr)
            rows = planned(config, env)
            print_plan(config, rows, f"{optimised(rows):,} of them train and search; run directory {out}")
            return
        from optimizers.run.display import print_result

        result = start(config, env, out, resume=flags.resume)

        print_result(result, str(out), _follow_up(out, result.harness))


def _follow_up(out: Path, harness: str) -> list[str]:
    harnesses = out / "harnesses"
    found = [str(harnesses / harness / "harness.py")]
    if (harnesses / "index.md").is_file():  # written by the first search
        found.append(str(harnesses / "index.md"))
    return [
        f"look at it:   less {join(found)}",
        f"measure more: {join(['python', '-m', 'optimizers.evaluate', '--run', str(out), '--tasks', '128'])}",
    ]


def whale() -> None:
    """``python -m optimizers.whale``: any method."""
    run_command("optimizers.whale")


def rsft() -> None:
    """``python -m optimizers.rsft``: weight phases only."""
    run_command("optimizers.rsft", method="weight-only")


def meta_harness() -> None:
    """``python -m optimizers.meta_harness``: harness phases only."""
    run_command("optimizers.meta_harness", method="harness-only")
