"""`load`: the public tasks of a data set; ``python -m whale_env.datasets get …``: the published data (`published`).

Lichess CSV for chess, Parquet, JSON lines, JSON and hub names for the others. Returns public tasks only: answers stay
in the environment, which takes the same data set as ``make(domain, source=…)`` and knows the tasks by the same ids.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from whale_env.errors import WhaleError
from whale_env.published import RECIPES, SEED, get, source_of_folder
from whale_env.registry import declared, handle
from whale_env.types import SPLITS, Json, Task


def load(path_or_name: str | Path, domain: str, **filters: Json) -> tuple[Task, ...]:
    """Loads a data set's tasks.

    Args:
        path_or_name: A file, a directory, or a name on the hub (``"gsm8k"``, ``"owner/name:configuration@split"``).
        domain: An environment's name (``"math"``).
        **filters: Further arguments of the environment (``tiers``, ``limit``, …).

    Returns:
        All tasks: those of ``train``, ``search``, then ``test``; each task says its split.

    Raises:
        whale_env.registry.UnknownEnvError: No such domain; the message suggests the nearest.
        InputError: The data set cannot be read, or a row of it makes no sense.
    """
    env = handle(domain, {**declared(domain).listing, **filters, "source": str(path_or_name)})
    return tuple(task for split in SPLITS for task in env.tasks(split))


EXAMPLES = """examples:
  python -m whale_env.datasets get math --out data/math
  python -m whale_env.datasets get chess --out data/chess --file lichess=lichess_db_puzzle.csv.zst
  python -m optimizers.whale --env math --env-args "$(python -m whale_env.datasets args data/math)"
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs ``python -m whale_env.datasets``; returns its exit status."""
    parser = argparse.ArgumentParser(
        "python -m whale_env.datasets",
        description="The published data sets: fetches and splits them, and prints the arguments that use them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("get", help="fetch and split", epilog=EXAMPLES, formatter_class=parser.formatter_class)
    making.add_argument("domain", help=", ".join(RECIPES))
    making.add_argument("--out", type=Path, required=True, help="folder to write")
    making.add_argument("--seed", type=int, default=SEED, help="seed of the draws (default: the paper's, %(default)s)")
    making.add_argument(
        "--file", action="append", default=[], metavar="NAME=PATH", help="a copy of a data set that is here already"
    )
    telling = commands.add_parser("args", help="print --env-args of a folder")
    telling.add_argument("folder", type=Path)
    flags = parser.parse_args(arguments)
    try:
        if flags.command == "args":
            try:
                print(json.dumps({"source": source_of_folder(flags.folder)}))
            except (OSError, ValueError, KeyError):
                print(f"{flags.folder} holds no data that get wrote", file=sys.stderr)
                return 2
            return 0
        files = dict(item.partition("=")[::2] for item in flags.file)
        manifest = get(flags.domain, flags.out, files, flags.seed)
    except WhaleError as error:
        print(error, file=sys.stderr)
        return 2
    for split, facts in manifest["splits"].items():
        print(f"{split:6} {facts['tasks']:6} tasks  {flags.out / facts['file']}")
    if manifest["refused_rows"]:
        print(f"{manifest['refused_rows']} rows could not be read and were left out")
    print(f"use it: --env-args '{json.dumps({'source': source_of_folder(flags.out)})}'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
