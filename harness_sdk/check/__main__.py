"""``python -m harness_sdk.check FILE --env chess``: validates a harness file and plays it, without a model."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from harness_sdk.check.facts import facts
from harness_sdk.check.playing import behaviour
from harness_sdk.loader import load
from harness_sdk.session import HarnessError
from harness_sdk.validator import validate
from whale_env.errors import InputError, WhaleError
from whale_env.registry import arguments_from, handle


def main() -> None:
    """The command line. A reader that goes away (``| head``) ends it without a word."""
    try:
        code = _checked()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its exit
        code = 141
    raise SystemExit(code)


def _at_least_one(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"give a whole number of at least 1, not {text!r:.40}")
    return int(text)


def _checked() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness_sdk.check",
        description="Validates a harness file as a proposer's, plays it in the cage, and says what to fix.",
        epilog="examples:\n  python -m harness_sdk.check my_harness.py --env chess\n"
        "  python -m harness_sdk.check my_harness.py:Mine --env chess --trusted\n"
        "  python -m harness_sdk.check my_package.mine:Mine --env chess --trusted\n"
        "exit status: 0 valid and sound, 1 something to fix, 2 it could not be checked",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", help="file.py, file.py:Class, or with --trusted module:Class")
    parser.add_argument("--env", default="chess", help="the environment to play (default: chess)")
    parser.add_argument("--env-args", default="{}", help="its keyword arguments, as JSON")
    parser.add_argument("--tasks", type=_at_least_one, default=4, help="search tasks to play (default: 4)")
    parser.add_argument("--trusted", action="store_true", help="your own code: play it in this process")
    parser.add_argument("--allow-uncaged", action="store_true", help="play it even where the kernel offers no cage")
    arguments = parser.parse_args()
    valid = True
    try:
        env = handle(arguments.env, arguments_from(arguments.env_args)).sealed()
        tasks = env.tasks("search")[: arguments.tasks]
        if not tasks:
            raise InputError(f"{arguments.env} has no task in its search split, so nothing can be played")
        name = env.prototype.domain.spec.name
        file, _, class_name = arguments.file.partition(":")
        path = Path(file)
        if path.suffix == ".py" and path.is_file():
            report = validate(path.read_text("utf-8", "replace"), name, class_name)
            print(report)
            valid = report.ok
            if not valid and not arguments.trusted:
                return 1
        harness = load(arguments.file, arguments.trusted, env=name, allow_uncaged=arguments.allow_uncaged)
        result = asyncio.run(behaviour(harness, env, tasks))
    except HarnessError as error:
        print(f"it cannot begin an episode: {error}")
        return 1
    except WhaleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if result.ok and not result.prompt:
        print("not played: no episode came as far as a prompt, so nothing can be said of it")
        return 2
    print(result)
    print(facts(env, tasks[0]))
    return 0 if valid and result.ok else 1


if __name__ == "__main__":
    main()
