"""The console command ``whale``: every command of this project by a short name; ``python -m`` runs the same doors."""

from __future__ import annotations

import runpy
import sys
from importlib import metadata

from whale_env.wording import did_you_mean

DOORS = {
    "run": ("optimizers.whale", "optimise weights and harness"),
    "rsft": ("optimizers.rsft", "weights alone"),
    "search": ("optimizers.meta_harness", "the harness alone"),
    "evaluate": ("optimizers.evaluate", "measure a pair on held-out tasks"),
    "controls": ("optimizers.controls", "what the search gains over luck"),
    "report": ("optimizers.report", "write a run's report.html"),
    "check": ("harness_sdk.check", "check a harness file"),
    "check-env": ("whale_env.testing", "check a domain"),
}
"""What is run by each name, and what it is for."""

USAGE = "\n".join(
    [
        "examples:",
        "  whale run --env chess --preset smoke         everything once, about a minute",
        "  whale run --out runs/mine --resume           go on with a run",
        "  whale check my_harness.py --env chess        is a harness valid, and how does it behave?",
        "",
        "commands (whale COMMAND --help tells more):",
        *(f"  {name:<10} {about} (python -m {module})" for name, (module, about) in DOORS.items()),
        "",
        "options: --help, --version",
    ]
)


def main() -> None:
    """Runs the command that is named first."""
    match sys.argv[1:]:
        case [] | ["-h" | "--help", *_]:
            print(USAGE)
        case ["--version", *_]:
            print(f"whale {metadata.version('whale-rl')}")
        case [name, *rest] if name in DOORS:
            module = DOORS[name][0]
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [name, *_]:
            print(f"error: no command {name!r}.{did_you_mean(name, DOORS)} (see whale --help)", file=sys.stderr)
            raise SystemExit(2)
