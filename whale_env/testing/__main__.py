"""The command ``python -m whale_env.testing my_pkg:MyEnv-v0``: a domain's contract, rule by rule."""

from __future__ import annotations

import argparse
import os
import sys

from whale_env.errors import WhaleError
from whale_env.registry import arguments_from, handle
from whale_env.testing import RULES, Subject, problems


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m whale_env.testing",
        description="Checks a domain against the contract, and says what to fix.\n\n"
        "Custody finds only answers that a session stores, and that solve the task when they are committed. Answers\n"
        "that are computed (amount * factor) or shown in part are not recognised: name them with --secret.",
        epilog="example:\n  python -m whale_env.testing my_pkg:MyEnv-v0 --env-args '{\"tier\": 1}'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("env", help="the environment, as for --env of the optimisers")
    parser.add_argument("--env-args", default="{}", help="its keyword arguments, as JSON")
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        help="a text that only the answers hold and nothing public may; repeatable",
    )
    parser.add_argument("--same-openings", action="store_true", help="tasks of two splits may begin alike")
    arguments = parser.parse_args()
    try:
        subject = Subject(
            handle(arguments.env, arguments_from(arguments.env_args)),
            tuple(arguments.secret),
            not arguments.same_openings,
        )
    except WhaleError as error:
        if os.environ.get("WHALE_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    broken = 0
    for name, rule in RULES.items():
        found = problems(name, subject)
        broken += bool(found)
        print(f"{'FAILED' if found else 'kept  '}  {name}: {' '.join((rule.__doc__ or '').split())}")
        for problem in found:
            print(f"        - {problem}")
    raise SystemExit(1 if broken else 0)


main()
