"""The static validator: says of a harness's source, without running it, whether it may go on, and how to repair it.

    report = validate(source, "chess")
    print(report)

**An allow-list.** Syntax, names, attributes, modules, decorators and base classes are allowed one by one
(`harness_sdk.validator.allowed`); everything else is refused, also what a later Python adds.

**Why not RestrictedPython.** It rewrites the program, so that what runs is not what was written, and moves the
decisions into guards called at run time (``_getattr_``, ``_write_``). Here a source is stored, compared node by node
(prompt-only search) and read by a proposer: it must run as it stands, and everything must be said before it runs, with
a line and a fix. It also knows nothing of hooks, limits and state, which is half of what has to be checked, and any
attribute without an underscore passes it: the escapes found in it (generator frames, CVE-2023-37271; format strings,
CVE-2023-41039; ``AttributeError.obj``, CVE-2024-47532) went that way. Here an attribute has to be one of a plain
value, of the SDK, or of the file itself. The price is a list to keep, in one place.

**What it does not do.** It is not the wall: that is the cage (`harness_sdk.sandbox`). It bounds what is written, not
what is computed, does not follow values through variables, and cannot see a harness that answers in the model's place
(the commit rule and the behaviour checks do).
"""

from __future__ import annotations

from harness_sdk.sources import without_mark
from harness_sdk.validator import bounds, constants, contract, names, syntax
from harness_sdk.validator.report import Problem, Report
from harness_sdk.validator.rules import RULES
from harness_sdk.validator.source import check_text, compile_only, parse
from harness_sdk.validator.tree import TooComplex, Tree, build

__all__ = ["RULES", "Problem", "Report", "validate"]


def validate(source: str, env: str, class_name: str = "") -> Report:
    """Checks a harness's source. Never raises, runs nothing, and gives the same report for the same source.

    Args:
        source: The Python source of the file.
        env: The domain that it is written for. Tools are checked in play, not here, so that any domain will do.
        class_name: The harness class; empty if there must be exactly one.

    Returns:
        All problems in one go, in source order.
    """
    del env
    if not isinstance(source, str):
        problem = Problem(1, 1, "source-text", f"the source is {type(source).__name__}, not a text", "pass a str")
        return Report(False, (problem,))
    source = without_mark(source)
    problems = list(check_text(source))
    found_name = None
    if not any(problem.rule == "source-size" for problem in problems):
        try:
            found, found_name = _check(source, class_name)
        except (RecursionError, MemoryError):
            fix = "split long expressions into several statements"
            found = [Problem(1, 1, "source-size", "the source nests too deep to be judged", fix)]
        problems += [problem for problem in found if not (problems and problem.rule == "syntax-error")]
    unique = {(p.line, p.column, p.rule, p.message): p for p in sorted(problems)}
    return Report(not unique, tuple(unique.values()), found_name)


def _check(source: str, class_name: str) -> tuple[list[Problem], str | None]:
    module = parse(source)
    if isinstance(module, Problem):
        return [module], None
    try:
        tree = build(module, source)
    except TooComplex as error:
        fix = "split it into smaller functions and statements"
        return [Tree(source.split("\n")).problem(error.node, "source-size", f"the source {error}", fix)], None
    found = [problem for rules in (syntax, names, constants, bounds) for problem in rules.check(tree)]
    found += contract.check(tree, class_name)
    uncompiled = compile_only(module, source)
    if uncompiled is not None:
        found.append(uncompiled)
    harnesses = contract.find(tree)
    named = (
        [node.name for node in harnesses if node.name == class_name]
        if class_name
        else [node.name for node in contract.last(harnesses)]
    )
    return found, named[0] if len(named) == 1 else None
