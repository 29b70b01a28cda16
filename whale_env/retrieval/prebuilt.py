"""Prebuilt indexes by name: which ones pyserini knows, and fetching one into pyserini's cache.

pyserini is asked in a process of its own: it starts Java to know its own names, and a process with Java in it could
fork no environment that searches. What is in an index and how it is searched: `lucene` and `dense`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from whale_env.retrieval.base import RetrieverError
from whale_env.retrieval.lucene import INSTALL, jar, java

Kind = Literal["lucene", "faiss"]

_WHAT = {
    "lucene": "a BM25 index of Lucene: give it as 'pyserini:{name}'",
    "faiss": "a dense FAISS index: give it as 'faiss:{name}@ENCODER'",
    "impact": "an index of learned term weights, which is not searched here",
    "vectors": "a dense index of Lucene, which is not searched here",
}

# What the other process does; argv: the name, the kind that is wanted, "fetch" or "look", and where this package is.
# Java is started first, since pyserini would ask it for a module that the Java from pip lacks and that no search needs.
_PROGRAM = """
import contextlib, difflib, json, sys

name, wanted, task, place = sys.argv[1:]
sys.path.insert(0, place)
with contextlib.redirect_stdout(sys.stderr):
    try:
        from whale_env.retrieval import lucene
        lucene.start_jvm()
        from pyserini import util
        tables = {
            "lucene": util.TF_INDEX_INFO,
            "faiss": util.FAISS_INDEX_INFO,
            "impact": util.IMPACT_INDEX_INFO,
            "vectors": {**util.LUCENE_HNSW_INDEX_INFO, **util.LUCENE_FLAT_INDEX_INFO},
        }
        kind = next((kind for kind, table in tables.items() if name in table), None)
        reply = {"kind": kind, "names": len(tables[wanted])}
        if kind is None:
            reply["near"] = difflib.get_close_matches(name, tables[wanted], n=3, cutoff=0.5)
        elif kind == wanted:
            row = tables[kind][name]
            reply |= {"bytes": row.get("size compressed (bytes)"), "texts": row.get("texts")}
            if task == "fetch" or util.check_downloaded(name):
                reply["directory"] = util.download_prebuilt_index(name, verbose=False)
    except BaseException as error:
        reply = {"error": f"{type(error).__name__}: {error}", "module": getattr(error, "name", None)}
print(json.dumps(reply))
"""


@dataclass(frozen=True, slots=True)
class Prebuilt:
    """A prebuilt index on this machine.

    Attributes:
        name: What pyserini calls it.
        directory: Where it is.
        texts: The prebuilt index that holds the texts of its documents; None where pyserini names none.
    """

    name: str
    directory: Path
    texts: str | None


def prebuilt(name: str, kind: Kind, *, progress: Callable[[str], None] | None = None) -> Prebuilt:
    """Finds a prebuilt index, and fetches it if it is not in pyserini's cache (``$PYSERINI_CACHE``) yet.

    Args:
        name: Its name, e.g. ``"wikipedia-dpr-100w"`` or ``"beir-v1.0.0-nq.flat"``.
        kind: What it must be.
        progress: Called with a line before a download begins; None writes it to the error output.

    Returns:
        The index.

    Raises:
        RetrieverError: There is no such index, it is of another kind, it cannot be fetched, or Java or pyserini is
            missing.
    """
    row = _asked(name, kind, "look")
    if row["kind"] is None:
        near = " or ".join(repr(other) for other in row["near"])
        hint = f" Did you mean {near}?" if near else ""
        raise RetrieverError(
            f"there is no file, directory or prebuilt index {name!r}.{hint} pyserini knows {row['names']} of this kind"
        )
    if row["kind"] != kind:
        raise RetrieverError(f"the prebuilt index {name!r} is {_WHAT[row['kind']].format(name=name)}")
    if not row.get("directory"):
        size = f" ({row['bytes'] / 1e6:,.0f} MB)" if row["bytes"] else ""
        tell = progress or (lambda line: print(line, file=sys.stderr, flush=True))
        tell(f"fetching the prebuilt index {name}{size}")
        row = _asked(name, kind, "fetch", size=size)
    return Prebuilt(name, Path(row["directory"]), row["texts"])


def _asked(name: str, kind: Kind, task: Literal["look", "fetch"], *, size: str = "") -> dict[str, Any]:
    jar(), java()
    fetching = task == "fetch"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, name, kind, task, str(Path(__file__).resolve().parents[2])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if fetching else subprocess.PIPE,  # a download shows its progress there
        text=True,
        errors="replace",
        check=False,
    )
    try:
        reply: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = ((done.stderr or "").strip().splitlines() or ["it said nothing"])[-1]
        raise RetrieverError(f"pyserini ended with status {done.returncode}: {last:.200}") from None
    if "error" not in reply:
        return reply
    if reply["module"]:
        raise RetrieverError(f"pyserini needs {reply['module']}, which is not installed: {INSTALL}")
    why = (reply["error"].splitlines() or [""])[0][:200]
    if fetching:
        raise RetrieverError(
            f"cannot fetch the prebuilt index {name!r}{size}: {why} Is there a network? "
            f"An index that is here already is given by its directory, e.g. '{_PREFIX[kind]}/data/{name}'"
        )
    raise RetrieverError(f"pyserini cannot say what {name!r} is: {why}")


_PREFIX: dict[Kind, str] = {"lucene": "pyserini:", "faiss": "faiss:"}
