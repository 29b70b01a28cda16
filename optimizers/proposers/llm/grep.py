"""Searches text files for a regular expression, as a program of its own that can be stopped: a pattern may be slow.

Reads a JSON object (``pattern``, ``paths``, ``most``, ``width``) from standard input and writes a JSON list of
``[path number, line number, excerpt]``. Started by `optimizers.proposers.llm.files`.
"""

from __future__ import annotations

import json
import re
import sys


def main() -> None:
    """Answers one request."""
    request = json.load(sys.stdin)
    pattern, width = re.compile(request["pattern"]), request["width"]
    found: list[tuple[int, int, str]] = []
    for index, path in enumerate(request["paths"]):
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                match = pattern.search(line)
                if match:
                    start = max(0, match.start() - width // 3)
                    found.append((index, number, line[start : start + width].strip()))
                    if len(found) == request["most"]:
                        print(json.dumps(found))
                        return
    print(json.dumps(found))


if __name__ == "__main__":
    main()
