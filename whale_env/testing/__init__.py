"""The contract of a domain, as checks that anybody can run on a domain of his own: ``check_domain("my_pkg:MyEnv-v0")``.

Each rule in `RULES` plays a few episodes and reports what is wrong in one line each, with the task or the value.
``python -m whale_env.testing my_pkg:MyEnv-v0`` does the same from a shell. Checks find breaches, they do not prove that
there are none: whether the verifier is *right* is for the domain's own tests. An answer is recognised by committing
what a session stores, so one that it computes, or shows in a cipher, is found only if it is named (``--secret``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from whale_env.core import EnvHandle
from whale_env.registry import handle
from whale_env.testing.calls import commit
from whale_env.testing.rules import RULES
from whale_env.testing.subject import ContractError, Rule, Subject
from whale_env.testing.verdicts import verdict_problems
from whale_env.types import Json

__all__ = ["RULES", "ContractError", "Rule", "Subject", "check_domain", "commit", "problems", "verdict_problems"]


def check_domain(
    env: EnvHandle | str,
    kwargs: Mapping[str, Json] | None = None,
    *,
    secrets: Sequence[str] = (),
    distinct: bool = True,
) -> None:
    """Checks a domain against every rule of the contract.

    Args:
        env: Its name as for ``--env``, or a handle on all splits.
        kwargs: Keyword arguments of the environment, where a name is given.
        secrets: Texts that only the answers hold: a domain with one such answer is a sharp test of custody.
        distinct: As in `Subject`.

    Raises:
        ContractError: The contract is broken; all breaches that were found are listed.
        whale_env.registry.UnknownEnvError: No environment has that name.
    """
    subject = Subject(handle(env, kwargs) if isinstance(env, str) else env, tuple(secrets), distinct)
    found = [f"{name}: {problem}" for name in RULES for problem in problems(name, subject)]
    if found:
        raise ContractError(f"{subject.env.name} breaks the contract:\n" + "\n".join(f"- {line}" for line in found))


def problems(rule: str, subject: Subject) -> list[str]:
    """Returns what one rule finds wrong.

    Args:
        rule: A name from `RULES`.
        subject: What to check.
    """
    found: list[str] = []
    try:
        for problem in RULES[rule](subject):  # one by one: what was found before an exception is kept
            found.append(problem)
    except ContractError as error:
        found.append(str(error))
    except Exception as error:  # a domain may raise anywhere, and that is a breach too
        found.append(f"raised {type(error).__name__}: {error}")
    return _group(found)


def _group(found: Sequence[str]) -> list[str]:
    """Returns the first of the findings that differ in values only, each with how many more there are."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for line in dict.fromkeys(found):
        template = re.sub(_QUOTED, " ", re.sub(r"(raised \w+): .*", r"\1", line, flags=re.DOTALL))
        words = re.findall(r"[^\W\d]{2,}", template)
        kinds.setdefault(tuple(word for word in words if word not in _VALUES), []).append(line)
    firsts = {" ".join(lines[0].splitlines())[:400]: len(lines) - 1 for lines in kinds.values()}
    return [first + (f" … and {more} more" if more else "") for first, more in firsts.items()]


_QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$))"""

_VALUES = frozenset({"None", "True", "False", "nan", "inf"})
