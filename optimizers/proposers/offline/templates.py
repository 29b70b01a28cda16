"""Source text of harnesses: `render` writes the `Harness` subclass that a recipe stands for.

Marks such as ``@TOOL@`` stand for names of the domain. What is decided is
`optimizers.proposers.offline.recipes`; nothing is decided here.
"""

from __future__ import annotations

import json
import re
from textwrap import indent
from typing import Any

from optimizers.proposers.offline.recipes import Facts, Recipe

EXAMPLES_NUMERIC: tuple[tuple[str, str, str], ...] = (
    ("A farm has 3 cows and buys 2 more. How many cows does it have?", "3 + 2 = 5.", "5"),
    ("What is 9 minus 5?", "9 - 5 = 4.", "4"),
    ("Each of 2 bags holds 4 balls. How many balls are there?", "2 * 4 = 8.", "8"),
)
EXAMPLES_TEXT: tuple[tuple[str, str, str], ...] = (
    ("Maria has a red bicycle and a blue car.", "What colour is Maria's bicycle?", "red"),
    ("The shop in Mill Street sells bread. It opens at eight.", "What does the shop in Mill Street sell?", "bread"),
    ("Tom's sister Ann lives in the green house.", "Who lives in the green house?", "Ann"),
)
"""Worked examples, invented and of no domain: (evidence, question, value), or of numbers (question, steps, value)."""


_IMPORTS = (("re.", "import re"), ("Counter(", "from collections import Counter"))


_NAMES = (
    "Completion",
    "Episode",
    "Harness",
    "Message",
    "ParseFailure",
    "ToolCall",
    "ToolSchema",
    "ToolSpec",
    "Turn",
    "seeded",
)


def render(recipe: Recipe, facts: Facts, class_name: str, docstring: str) -> str:
    """Writes the source of the harness that a recipe stands for.

    Args:
        recipe: The decisions.
        facts: The domain's shapes.
        class_name: Name of the class.
        docstring: What it tries and why.

    Returns:
        A complete module with one `harness_sdk.Harness` subclass.
    """
    attributes: dict[str, Any] = {
        "system": recipe.system,
        "instructions": recipe.instructions,
        "max_turns": recipe.max_turns,
        "max_failures": recipe.max_failures,
        "max_tokens_per_turn": recipe.max_tokens_per_turn,
    }
    if recipe.reading != "choices" or recipe.opened:
        attributes["stop_strings"] = (f"</{facts.tool}>",)
    if recipe.reading == "line" and not recipe.opened:  # one line, so that the reply names no more than it answers
        attributes["stop_strings"] = (*attributes["stop_strings"], "\n")
    if recipe.votes > 1:
        attributes["votes"] = recipe.votes
    if recipe.opened:
        attributes["opening"] = f"<{facts.tool}>{facts.form[0]}"
    if recipe.examples:
        attributes["examples"] = tuple(_examples(recipe, facts))
    text = "\n\n".join(indent(method, "    ") for method in _methods(recipe, facts))
    names = [name for name in _NAMES if name == "Harness" or re.search(rf"\b{name}\b", text)]
    imports = [line for word, line in _IMPORTS if word in text]
    lines = [f'"""{docstring}"""', "", *imports, *([""] if imports else [])]
    lines += [f"from harness_sdk import {', '.join(names)}", "", ""]
    lines += [f"class {class_name}(Harness):", f'    """{docstring.splitlines()[0]}"""', ""]
    lines += [f"    {name} = {_literal(value)}" for name, value in attributes.items()]
    return "\n".join([*lines, "", text]) + "\n"


def _literal(value: Any, margin: str = "    ") -> str:
    """Returns a value as source, as a person would lay it out."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, tuple):
        return repr(value)
    inner = [_literal(item) for item in value]
    if value and isinstance(value[0], tuple):
        return "(\n" + "".join(f"{margin}    {item},\n" for item in inner) + f"{margin})"
    return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"


def _examples(recipe: Recipe, facts: Facts) -> list[tuple[str, str]]:
    """Returns pairs of what is asked and what is replied, laid out as the harness lays out the real thing."""
    before, after = facts.form
    pairs = []
    for first, second, value in (EXAMPLES_NUMERIC if facts.numeric else EXAMPLES_TEXT)[: recipe.examples]:
        asked = first if facts.numeric else f"{first}\n\n{second}"
        if recipe.opened or not before:
            reply = f"<{facts.tool}>{before}{value}{after}</{facts.tool}>"
        else:  # the form alone can be read
            reply = f"{second} The answer is {before}{value}{after}." if facts.numeric else f"{before}{value}{after}"
        pairs.append((asked, reply))
    return pairs


def _methods(recipe: Recipe, facts: Facts) -> list[str]:
    """Returns the source of each method, not indented, in the order in which they are called."""
    found = [TOOLS, _pack(recipe), *_show(recipe, facts), *_parse(recipe, facts), RECOVER, _shown_turns(recipe, facts)]
    context = facts.facts if recipe.context else ()
    before, after = facts.form
    fill = {
        "@TOOL@": facts.tool,
        "@ARGUMENT@": facts.argument,
        "@BEFORE@": _literal(before),
        "@UNTIL@": "".join(f".split({_literal(end)})[0]" for end in (after, f"</{facts.tool}>") if end),
        "@VALUE@": f"{_literal(before)} + value + {_literal(after)}" if before or after else "value",
        "@CHOICES@": facts.choices or "",
        "@TITLE@": (facts.choices or "").replace("_", " "),
        "@FACTS@": "".join(f"{name.replace('_', ' ')}: {{data['{name}']}}\\n" for name in context),
        "@VIEW@": recipe.view,
        "@JOIN@": "\\n" if recipe.layout == "lines" else " ",
        "@NOTATIONS@": repr(facts.notations),
        "@FIRST@": facts.notations[0] if facts.notations else "",
        "@INFORM@": recipe.inform,
        "@QUERY@": _query(recipe, facts),
        "@CAST@": CASTS.get(facts.kind, ""),
        "@NUMBER@": {"integer": "whole number"}.get(facts.kind, "number"),
        "@OPTIONS@": repr(dict(facts.options)),
    }
    filled = []
    for method in found:
        for mark, value in fill.items():
            method = method.replace(mark, value)
        filled.append(method.strip("\n"))
    return filled


def _query(recipe: Recipe, facts: Facts) -> str:
    if not recipe.inform:
        return ""
    asked = f'"{facts.informing[recipe.inform]}": episode.first.text'
    return asked + (f', "{facts.counts[recipe.inform]}": 1' if recipe.few else "")


TOOLS = r"""
def tools(self, env_tools: list[ToolSpec]) -> list[ToolSchema]:
    return []
"""


def _pack(recipe: Recipe) -> str:
    text = PACK.replace("@EXAMPLES@\n", EXAMPLES if recipe.examples else "")
    text = text.replace("@REPLY@", "self.opening + turn.completion.text" if recipe.opened else "turn.completion.text")
    return text.replace("@PREFIX@\n", PREFIX if recipe.opened else "")


PACK = r"""
def pack(self, episode: Episode) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
@EXAMPLES@
    messages.append({"role": "user", "content": f"{self.show(episode)}\n\n{self.instructions}".strip()})
    for turn in self.shown_turns(episode):
        messages.append({"role": "assistant", "content": @REPLY@})
        messages.append({"role": "user", "content": turn.feedback or "\n".join(turn.results) or self.instructions})
@PREFIX@
    return messages
"""

EXAMPLES = r"""    for asked, replied in self.examples:
        messages.append({"role": "user", "content": f"{asked}\n\n{self.instructions}".strip()})
        messages.append({"role": "assistant", "content": replied})
"""

PREFIX = r"""    # The reply begins inside the tag; the model only has to fill it in.
    messages.append({"role": "assistant", "content": self.opening})
"""


def _show(recipe: Recipe, facts: Facts) -> list[str]:
    if recipe.view != "full":
        return [SHOW_CHOICES.replace("@ORDER@\n", OTHER_ORDER if recipe.order == "shuffled" else "")]
    if recipe.inform:
        return [SHOW_FOUND]
    return [SHOW_FIRST if facts.informing else SHOW_NOW]


SHOW_NOW = r"""
def show(self, episode: Episode) -> str:
    return episode.observation.text
"""

SHOW_FIRST = r"""
def show(self, episode: Episode) -> str:
    return episode.first.text
"""

SHOW_FOUND = r"""
def show(self, episode: Episode) -> str:
    found = [text for turn in episode.turns if turn.failure is None for text in turn.results]
    return "\n\n".join([*found[-1:], episode.first.text])
"""

SHOW_CHOICES = r"""
def show(self, episode: Episode) -> str:
    data = episode.observation.data
    choices = [item["@VIEW@"] for item in data["@CHOICES@"]]
@ORDER@
    return f"@FACTS@@TITLE@:@JOIN@" + "@JOIN@".join(choices)
"""

OTHER_ORDER = r"""    seeded(episode).shuffle(choices)  # another order at each call: no place is worth more
"""


def _parse(recipe: Recipe, facts: Facts) -> list[str]:
    if recipe.reading == "choices":
        return [PARSE_VOTES if recipe.votes > 1 else PARSE_CHOICE, CHOICE, BARE]
    if facts.kind != "string":
        return _parse_typed(recipe, facts)
    reading = READINGS.get(recipe.reading, "") if not recipe.opened else ""
    form = FORM if facts.form[0] and not recipe.opened else ""
    if not (reading or form or recipe.inform or recipe.opened):
        return []
    body = (
        (INFORM if recipe.inform else "")
        + form
        + (OPENED if recipe.opened else TAGS + (reading or "    return found\n"))
    )
    return [PARSE + body]


def _parse_typed(recipe: Recipe, facts: Facts) -> list[str]:
    """Returns how a value that is no text is read: as the type that the tool's schema asks for."""
    reads = facts.kind != "other" and (recipe.opened or recipe.reading != "tags")
    if not (reads or recipe.inform):
        return []
    taken = "" if not reads else OPENED_TYPED if recipe.opened else READING_TYPED
    body = (INFORM if recipe.inform else "") + ("" if recipe.opened else TAGS) + (taken or "    return found\n")
    return [PARSE + body, *([READ_OPTION if facts.kind == "option" else READ_NUMBER] if reads else [])]


PARSE = r"""
def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
"""

INFORM = r"""    asked = any(call.name == "@INFORM@" for turn in episode.turns for call in turn.calls)
    if not asked:
        return [ToolCall("@INFORM@", {@QUERY@})]
"""

FORM = r"""    if @BEFORE@ in completion.text:
        return [ToolCall("@TOOL@", {"@ARGUMENT@": completion.text})]
"""

TAGS = r"""    found = super().parse(completion, episode)
"""

OPENED = r"""    value = completion.text.split("<@TOOL@>")[-1]@UNTIL@.strip()  # some replies open the tag again
    if not value or re.search(r"[\n<]", value):  # what stands in another tag is no answer
        return ParseFailure("the tag does not hold a single line")
    return [ToolCall("@TOOL@", {"@ARGUMENT@": @VALUE@})]
"""

READINGS = {
    "number": r"""    numbers = re.findall(r"-?\d+(?:,\d{3})*(?:\.\d+)?", completion.text)
    if isinstance(found, ParseFailure) and numbers:
        value = numbers[-1]
        return [ToolCall("@TOOL@", {"@ARGUMENT@": @VALUE@})]
    return found
""",
    "line": r"""    lines = [line.strip() for line in completion.text.splitlines() if line.strip()]
    if isinstance(found, ParseFailure) and lines and not re.search(r"[<{]", lines[0]):  # no broken call
        value = lines[0].rstrip(".")
        return [ToolCall("@TOOL@", {"@ARGUMENT@": @VALUE@})]
    return found
""",
}

OPENED_TYPED = r"""    value = completion.text.split("<@TOOL@>")[-1]@UNTIL@.strip()  # some replies open the tag again
    if not value or re.search(r"[\n<]", value):  # what stands in another tag is no answer
        return ParseFailure("the tag does not hold a single line")
    return self.read(value)
"""

READING_TYPED = r"""    if isinstance(found, ParseFailure) or any(call.name == "@TOOL@" for call in found):
        return self.read(completion.text.split("<@TOOL@>")[-1]@UNTIL@)
    return found
"""

CASTS = {"integer": "int(plain)", "number": 'float(plain) if re.search("[.e]", plain) else int(plain)'}

READ_NUMBER = r"""
def read(self, text: str) -> list[ToolCall] | ParseFailure:
    # Only a number that stands alone was said, as it will be written: not the 8 of 8m, 0.8 or 3/8.
    number = r"-?(?:\d{1,3}(?:,\d{3}){1,12}|\d{1,40})(?:\.\d{1,40})?(?:[eE][-+]?\d{1,2})?"
    found = re.findall(rf"(?<![\w.,/^\u2212-]){number}(?![\w/^]|[.,]\d)", text)
    if not found:
        return ParseFailure("no number stands alone in the reply")
    plain = found[-1].replace(",", "").lower()
    try:
        value = @CAST@
    except ValueError:
        return ParseFailure(f"{found[-1]} is not written as a @NUMBER@")
    return [ToolCall("@TOOL@", {"@ARGUMENT@": value})]
"""

READ_OPTION = r"""
def read(self, text: str) -> list[ToolCall] | ParseFailure:
    known = @OPTIONS@
    words = "|".join(re.escape(word) for word in sorted(known, key=len, reverse=True))
    named = re.findall(rf"(?<![^\W_])(?:{words})(?![^\W_])", " ".join(text.casefold().split()))
    if len(set(named)) != 1:
        return ParseFailure("the reply does not name exactly one of " + ", ".join(known))
    return [ToolCall("@TOOL@", {"@ARGUMENT@": known[named[0]]})]
"""

PARSE_CHOICE = r"""
def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
    choice = self.choice(completion.text, episode)
    if not choice:
        return ParseFailure("the reply names none of the choices")
    return [ToolCall("@TOOL@", {"@ARGUMENT@": choice})]
"""

PARSE_VOTES = r"""
def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
    replies: list[str] = []  # since something was last done
    for turn in episode.turns:
        replies = [] if turn.calls else [*replies, turn.completion.text]
    replies.append(completion.text)
    votes = Counter(choice for reply in replies if (choice := self.choice(reply, episode)))
    most = max(votes.values(), default=0)
    if len(replies) < self.votes and most * 2 <= self.votes:
        return []  # asks again
    if not votes:
        return ParseFailure("the replies name none of the choices")
    return [ToolCall("@TOOL@", {"@ARGUMENT@": votes.most_common(1)[0][0]})]
"""

CHOICE = r"""
def choice(self, text: str, episode: Episode) -> str:
    known = {}
    for item in episode.observation.data["@CHOICES@"]:
        for notation in @NOTATIONS@:
            known[self.bare(item[notation])] = item["@FIRST@"]
    named = [known[word] for word in map(self.bare, re.findall(r"[\w=+#-]+", text)) if word in known]
    if len(set(named)) > 3:  # whoever names many means the last, if any
        return named[-1]
    return named[0] if named else ""
"""

BARE = r"""
def bare(self, word: str) -> str:
    return re.sub(r"^\W+|\W+$", "", word)
"""

RECOVER = r"""
def recover(self, failure: ParseFailure, episode: Episode) -> str | None:
    return f"That cannot be used: {failure.reason}. {self.instructions}".strip()
"""


def _shown_turns(recipe: Recipe, facts: Facts) -> str:
    """Where tools inform and are not asked by the harness, what they gave stands in the history and must stay."""
    if facts.informing and not recipe.inform:
        return ALL_TURNS if recipe.retry == "explain" else NO_FAILURES
    return SINCE_SUCCESS if recipe.retry == "explain" else NOTHING


ALL_TURNS = r"""
def shown_turns(self, episode: Episode) -> list[Turn]:
    return list(episode.turns)
"""

NO_FAILURES = r"""
def shown_turns(self, episode: Episode) -> list[Turn]:
    # A small model repeats what it reads, its own mistakes too: those are left out.
    return [turn for turn in episode.turns if turn.failure is None]
"""

SINCE_SUCCESS = r"""
def shown_turns(self, episode: Episode) -> list[Turn]:
    failed: list[Turn] = []
    for turn in episode.turns:
        failed = [] if turn.failure is None else [*failed, turn]
    return failed
"""

NOTHING = r"""
def shown_turns(self, episode: Episode) -> list[Turn]:
    # A small model repeats what it reads, its own mistakes too: each try begins from a clean prompt.
    return []
"""
