"""Questions on a corpus: search as often as you like, then commit one short ``answer(text)``.

Judged by `verifier`: if the committed text has answer tags, their last pair counts, else the whole text.
What a search finds is data: a tag in a passage is never read as the model's, since only a committed call is judged
and a call must have been said by the model. Retrievers live in `whale_env.retrieval`, files in `questions`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

from whale_env.commit import Named, named_verbatim, said_verbatim
from whale_env.core import CallError, DomainSpec, Easy, Outcome, ToolEnv
from whale_env.errors import InputError
from whale_env.retrieval import MAX_K, Passage, Retriever, opened
from whale_env.searchqa.judge import Judge, JudgeConfig, LLMJudge, Verdict
from whale_env.searchqa.questions import EMBEDDED, Question, load_questions
from whale_env.searchqa.verifier import answer_matches, normalised, tagged_answer
from whale_env.splits import Plan, Source, plan_of
from whale_env.text_files import stamp
from whale_env.types import Failure, Observation, Score, Split, Task, ToolCall, ToolSpec

DEFAULT_K = 3
PROBE = "the"
"""A query that every retriever can answer, to find out whether it was another query that broke it."""

MAX_QUERY = 1000
"""Characters of a query; with more, Lucene would refuse it for its number of terms."""
SEARCH = ToolSpec(
    "search",
    "Searches the corpus and returns the passages that fit best.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words to look for."},
            "k": {"type": "integer", "description": f"How many passages, 1 to {MAX_K}; {DEFAULT_K} if left out."},
        },
        "required": ["query"],
    },
)
ANSWER = ToolSpec(
    "answer",
    "Gives the final answer: a name, a number or a short phrase.",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The answer and nothing else."}},
        "required": ["text"],
    },
    commits=True,
)


def searchqa_env(
    *,
    source: Source = None,
    retriever: str | Retriever = "bm25",
    judge: str | Judge | None = None,
    hops: int | None = None,
    limit: int | None = None,
    split: Split = "train",
    render_mode: str | None = None,
) -> ToolEnv:
    """Makes the question-answering environment (``whale/SearchQA-v0``).

    Args:
        source: A file, directory, or hub name (`whale_env.rows.read_rows`), several, or a mapping from split to those,
            e.g. ``{"train": "search-r1", "search": "search-r1", "test": ["popqa", "musique"]}``. None takes the
            embedded questions.
        retriever: ``"bm25:CORPUS"`` or ``"pyserini:CORPUS"`` (a file, see `whale_env.retrieval.read_corpus`),
            ``"pyserini:INDEX_DIRECTORY"``, ``"pyserini:NAME"`` (a prebuilt index of pyserini's), ``"faiss:…"`` (a dense
            one, below), a server's address, ``"none"``, or an object with ``search``. Without a corpus it is the
            embedded one.
        judge: A model that is asked where exact match says no: ``"openai:MODEL"`` or ``"anthropic:MODEL"``, either with
            ``@BASE_URL`` at its end, or an object with ``judge``. None: exact match alone.
        hops: Keep questions that need so many passages (embedded: 1 or 2).
        limit: Keep the first so many questions.
        split: Where ``reset()`` draws from.
        render_mode: ``"ansi"`` or None.

    Returns:
        The environment.

    On a command line these stand in ``--env-args``, a JSON object. A prebuilt BM25 index by name, here Wikipedia in
    passages of 100 words; it is fetched once (9 GB) into pyserini's cache::

        --env-args '{"source": "nq-open", "retriever": "pyserini:wikipedia-dpr-100w"}'

    A prebuilt dense index and the query encoder it was made with, a hub name or a directory; its texts are those of the
    BM25 index that pyserini names for it, unless a third part names others. Where the encoder's name does not tell its
    kind, it stands before it (`whale_env.retrieval.dense.ENCODERS`)::

        "faiss:wikipedia-dpr-100w.dpr-multi@facebook/dpr-question_encoder-multiset-base"
        "faiss:wikipedia-dpr-100w.dpr-multi@dpr=/models/questions@/data/lucene-with-the-texts"

    A dense index of one's own, in pyserini's layout, with its encoder and its corpus file or Lucene index::

        "faiss:/data/vectors@contriever=/models/contriever@/data/corpus.jsonl"

    All of these need ``pip install -e '.[search]'``, the dense ones ``faiss-cpu`` as well.

    Raises:
        whale_env.rows.DatasetError: A data set or the corpus cannot be read, a row is bad, or nothing is left.
        whale_env.retrieval.RetrieverError: The retriever is unknown, or what it needs is missing.
        whale_env.searchqa.judge.JudgeError: The judge is unknown, or its key is missing.
        InputError: A filter makes no sense, or questions of one's own come without a corpus.
    """
    if source is not None and retriever in ("bm25", "pyserini"):
        raise InputError(
            f"questions from {source!r:.80} need their corpus: give retriever='{retriever}:CORPUS_FILE', "
            "or retriever='none' for answering without passages"
        )
    plan = plan_of(source)
    questions = _load(plan, hops, limit, stamp(*(name for name, _ in plan)))
    finder = opened(retriever, str(EMBEDDED)) if isinstance(retriever, str) else retriever
    second = LLMJudge(JudgeConfig.of(judge)) if isinstance(judge, str) else judge
    return ToolEnv(SearchQADomain(questions, finder, second), split=split, render_mode=render_mode)


@lru_cache(maxsize=8)
def _load(plan: Plan, hops: int | None, limit: int | None, files: Hashable) -> tuple[Question, ...]:
    """Loads questions, or finds them again if the stamp of the ``files`` is the same."""
    return load_questions(plan, hops=hops, limit=limit)


class SearchQADomain:
    """Questions over a corpus as a `whale_env.core.Domain`."""

    spec = DomainSpec(
        "searchqa",
        (SEARCH, ANSWER),
        max_steps=32,
        max_invalid=8,
        blocking=True,
        easy=Easy({"hops": 1}, calls=3, tokens=96),
        baseline="reference_harnesses.searchqa.h0:SearchQAH0",
        listing={"retriever": "none"},
    )

    def __init__(self, questions: Sequence[Question], retriever: Retriever, judge: Judge | None = None) -> None:
        """Sorts questions into splits.

        Args:
            questions: The questions; their answers stay inside.
            retriever: What ``search`` asks.
            judge: Who is asked where exact match says no.
        """
        self._judge = judge
        self._questions = {question.id: question for question in questions}
        self._retriever = retriever
        self._tasks: dict[Split, list[Task]] = {"train": [], "search": [], "test": []}
        for question in questions:
            shown = {} if question.hops is None else {"hops": question.hops}
            self._tasks[question.split].append(Task(question.id, "searchqa", question.split, shown, question.source))

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns the public tasks of a split, in the order of the data."""
        return self._tasks[split]

    def start(self, task: Task, seed: int) -> SearchQASession:
        """Opens a question; nothing in it is random."""
        return SearchQASession(self._questions[task.id], self._retriever, self._judge)


class SearchQASession:
    """One question in progress."""

    def __init__(self, question: Question, retriever: Retriever, judge: Judge | None) -> None:
        self._question, self._retriever, self._judge = question, retriever, judge
        self._query: str | None = None
        self._found: tuple[Passage, ...] = ()
        self._searches = 0
        self._retrieved = False
        self._verdict: Verdict | None = None
        self._empty = False

    def observe(self) -> Observation:
        """Shows the question; after a search, the passages found."""
        data: dict[str, Any] = {
            "question": self._question.text,
            "query": self._query,
            "passages": [passage.to_json() for passage in self._found],
        }
        if self._verdict is not None:
            return Observation("The answer has been given.", data)
        return Observation(self._question.text if self._query is None else _shown(self._found), data)

    def apply(self, call: ToolCall) -> Outcome:
        """Searches, or judges the answer and ends the episode."""
        if call.name == "answer":
            self._verdict = self._judged(str(call.arguments["text"]))
            return Outcome(self.observe(), None, True)
        # a lone surrogate could be sent to no retriever
        query = str(call.arguments["query"]).encode("utf-8", "replace").decode().strip()
        k = call.arguments.get("k", DEFAULT_K)
        if not query:
            return Outcome(self.observe(), "search: the query is empty")
        if len(query) > MAX_QUERY:
            return Outcome(self.observe(), f"search: the query has {len(query)} characters; at most {MAX_QUERY}")
        if not isinstance(k, int) or not 1 <= k <= MAX_K:
            return Outcome(self.observe(), f"search: k must be from 1 to {MAX_K}, not {k}")
        self._found = self._search(query, k)
        self._query = query
        self._searches += 1
        self._retrieved = self._retrieved or any(_holds(passage, self._question.answers) for passage in self._found)
        return Outcome(self.observe())

    def said(self, call: ToolCall, text: str) -> bool:
        """Whether the text has the answer, case and white space aside; of one with answer tags, what they hold."""
        return said_verbatim(_in_tags(call), text)

    def named(self, call: ToolCall, text: str) -> tuple[Named, ...]:
        """Returns the numbers or the pieces that the text names."""
        return named_verbatim(_in_tags(call), text)

    def score(self) -> Score:
        """1 when the committed answer matches a reference.

        Metrics: ``searches``; ``retrieval_accuracy``, whether a passage found holds a reference answer; and, where one
        does, ``extraction_accuracy``, whether the answer was right. With a judge: ``judge_fallback``, whether it gave
        no verdict, so that exact match decided. A judge that does not answer is an error of the episode, not a verdict.
        """
        verdict = self._verdict
        reward = float(verdict is not None and verdict.right)
        metrics = {"searches": float(self._searches), "retrieval_accuracy": float(self._retrieved)}
        if self._retrieved:
            metrics["extraction_accuracy"] = reward
        if self._judge is not None and verdict is not None:
            metrics["judge_fallback"] = float(verdict.source == "fallback")
        failure: Failure | None = "budget" if verdict is None else "format" if self._empty else "wrong"
        return Score(reward, None if reward else failure, metrics)

    def _search(self, query: str, k: int) -> tuple[Passage, ...]:
        try:
            return self._retriever.search(query, k)
        except Exception as error:
            try:
                self._retriever.search(PROBE, 1)
            except Exception:
                raise error from None  # nothing can be found: the query is not to blame
            why = (str(error).strip().splitlines() or [""])[0]
            raise CallError(f"search: the query breaks the retriever: {type(error).__name__}: {why:.200}") from error

    def _judged(self, text: str) -> Verdict:
        tagged = tagged_answer(text)
        given = text.strip() if tagged is None else tagged
        self._empty = not given
        if self._judge is not None:
            return self._judge.judge(self._question.text, self._question.answers, given)
        return Verdict(answer_matches(self._question.answers, given), "exact")


def _in_tags(call: ToolCall) -> ToolCall:
    tagged = tagged_answer(str(call.arguments["text"]))
    return call if tagged is None else ToolCall(call.name, {"text": tagged})


def _holds(passage: Passage, answers: Sequence[str]) -> bool:
    text = f" {normalised(passage.title)} | {normalised(passage.text)} "
    return any(f" {normalised(answer)} " in text for answer in answers)


def _shown(passages: Sequence[Passage]) -> str:
    if not passages:
        return "No passage was found."
    parts = (f"[{place}] {passage.title}\n{passage.text}".strip() for place, passage in enumerate(passages, 1))
    return "\n\n".join(parts)
