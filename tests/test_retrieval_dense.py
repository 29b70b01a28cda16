"""Indexes by name: prebuilt ones of pyserini, and dense ones of FAISS with a small encoder made here."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from whale_env.retrieval import Passage, RetrieverError, dense, opened, prebuilt

needs_pyserini = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("pyserini", "jnius", "pandas")), reason="needs pyserini"
)
needs_faiss = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("pyserini", "jnius", "pandas", "sklearn", "faiss")),
    reason="needs pyserini and faiss",
)


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("dpr=/models/x", "dpr", "/models/x"),
        ("facebook/dpr-question_encoder-multiset-base", "dpr", "facebook/dpr-question_encoder-multiset-base"),
        ("castorini/tct_colbert-v2-hnp-msmarco", "tct_colbert", "castorini/tct_colbert-v2-hnp-msmarco"),
        ("castorini/ance-dpr-question-multi", "ance", "castorini/ance-dpr-question-multi"),
        ("BAAI/bge-base-en-v1.5", "bge", "BAAI/bge-base-en-v1.5"),
        ("/home/cedpratt/balance", "auto", "/home/cedpratt/balance"),
        ("auto=facebook/contriever", "auto", "facebook/contriever"),
    ],
)
def test_the_kind_of_an_encoder_is_given_or_a_word_of_its_name(text: str, kind: str, name: str) -> None:
    assert dense.encoder_of(text) == (kind, name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("faiss:x@cotriever=y", "unknown kind of encoder 'cotriever' .* Did you mean 'contriever'"),
        ("faiss:x", "needs its query encoder: 'faiss:INDEX@ENCODER'"),
        ("faiss:/no/such/place@dpr=y", "no FAISS index at '/no/such/place'"),
        ("fais:x@y", "Did you mean 'faiss'"),
    ],
)
def test_a_wrong_dense_retriever_is_told_in_a_line(name: str, why: str) -> None:
    with pytest.raises(RetrieverError, match=why) as caught:
        opened(name)
    assert "\n" not in str(caught.value)


def test_a_dense_index_needs_its_files_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RetrieverError, match="holds no texts: name them"):
        opened(f"faiss:{tmp_path}@y")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "text": "a"}\n')
    with pytest.raises(RetrieverError, match="no file index and docid"):
        opened(f"faiss:{tmp_path}@y@{corpus}")
    (tmp_path / "index").touch()
    (tmp_path / "docid").write_text("2\n")
    monkeypatch.setattr(dense, "find_spec", lambda name: None)
    with pytest.raises(RetrieverError, match="faiss is not installed: pip install faiss-cpu"):
        opened(f"faiss:{tmp_path}@y@{corpus}", "again")
    monkeypatch.setattr(dense, "find_spec", lambda name: name)
    monkeypatch.setattr(dense, "jar", lambda: None)
    monkeypatch.setattr(dense, "java", lambda: None)
    with pytest.raises(RetrieverError, match="has no passage '2', which the FAISS index names"):
        opened(f"faiss:{tmp_path}@y@{corpus}", "and again")


# What pyserini's process says, without pyserini


class _Said:
    """Stands for the other process: notes how it was called and replies in turn."""

    def __init__(self, *replies: Any) -> None:
        self.replies, self.calls = list(replies), []  # type: ignore[var-annotated]

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(command[3:])
        reply = self.replies.pop(0)
        return subprocess.CompletedProcess(command, 0, reply if isinstance(reply, str) else json.dumps(reply), "")


def said(monkeypatch: pytest.MonkeyPatch, *replies: Any) -> _Said:
    process = _Said(*replies)
    monkeypatch.setattr(prebuilt.subprocess, "run", process)
    monkeypatch.setattr(prebuilt, "jar", lambda: Path("x.jar"))
    monkeypatch.setattr(prebuilt, "java", lambda: Path("/java/bin/java"))
    return process


def test_a_prebuilt_index_is_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = {"kind": "lucene", "names": 3, "bytes": 9_177_917_732, "texts": None}
    process = said(monkeypatch, row, {**row, "directory": str(tmp_path)}, {**row, "directory": str(tmp_path)})
    told: list[str] = []
    for _ in range(2):
        found = prebuilt.prebuilt("wikipedia-dpr-100w", "lucene", progress=told.append)
        assert found == prebuilt.Prebuilt("wikipedia-dpr-100w", tmp_path, None)
    assert [call[2] for call in process.calls] == ["look", "fetch", "look"]
    assert told == ["fetching the prebuilt index wikipedia-dpr-100w (9,178 MB)"]


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        (
            [{"kind": None, "names": 3, "near": ["wikipedia-dpr-100w"]}],
            "no file, directory or prebuilt index 'wiki'. Did you mean 'wikipedia-dpr-100w'",
        ),
        ([{"kind": "faiss", "names": 3}], "'wiki' is a dense FAISS index: give it as 'faiss:wiki@ENCODER'"),
        ([{"kind": "impact", "names": 3}], "learned term weights, which is not searched here"),
        ([{"error": "ModuleNotFoundError: x", "module": "pandas"}], "pyserini needs pandas, which is not installed"),
        (["", "x"], "pyserini ended with status 0: it said nothing"),
        (
            [
                {"kind": "lucene", "names": 3, "bytes": 10**9, "texts": None},
                {"error": "ValueError: Unable to download.\nmore", "module": None},
            ],
            r"cannot fetch the prebuilt index 'wiki' \(1,000 MB\): ValueError: Unable to download. Is there a network",
        ),
    ],
)
def test_what_can_be_wrong_with_a_name(monkeypatch: pytest.MonkeyPatch, replies: list[Any], why: str) -> None:
    said(monkeypatch, *replies)
    with pytest.raises(RetrieverError, match=why) as caught:
        opened("pyserini:wiki", f"{replies}")
    assert "\n" not in str(caught.value)


def test_files_are_no_prebuilt_names(monkeypatch: pytest.MonkeyPatch) -> None:
    process = said(monkeypatch)
    for place in ("corpus.jsonl", "/data/index", "data/index"):
        with pytest.raises(RetrieverError, match="no Lucene index at"):
            opened(f"pyserini:{place}")
    assert not process.calls


# With pyserini


@needs_pyserini
def test_names_of_pyserini(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path))
    with pytest.raises(RetrieverError, match="Did you mean 'wikipedia-dpr-100w'"):
        prebuilt.prebuilt("wikipedia-dpr-100", "lucene")
    with pytest.raises(RetrieverError, match="is a dense FAISS index"):
        prebuilt.prebuilt("wikipedia-dpr-100w.dpr-multi", "lucene")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny encoder, and an index of its vectors with the corpus that it was made from."""
    faiss: Any = pytest.importorskip("faiss")
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("dense")
    words = ["tower", "paris", "river", "rhine", "mountain", "alps", "ocean", "pacific", "the", "of", "in", "a"]
    (root / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    encoder = root / "encoder"
    BertTokenizerFast(str(root / "vocab.txt")).save_pretrained(str(encoder))
    config = BertConfig(vocab_size=17, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertModel(config).save_pretrained(str(encoder))
    passages = [Passage(f"d{n}", word, f"the {word} of {other}") for n, (word, other) in enumerate(
        [("tower", "paris"), ("river", "rhine"), ("mountain", "alps"), ("ocean", "pacific")]
    )]  # fmt: skip
    corpus = root / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(passage.to_json()) + "\n" for passage in passages))
    code = (
        "import sys, json, faiss, numpy; from whale_env.retrieval import dense, lucene; lucene.start_jvm(); "
        "encoder = dense.pyserini('encode').AutoQueryEncoder(sys.argv[1], pooling='mean', l2_norm=True); "
        "rows = [json.loads(line) for line in open(sys.argv[2])]; "
        "vectors = numpy.stack([encoder.encode(row['text']) for row in rows]); "
        "index = faiss.IndexFlatIP(vectors.shape[1]); index.add(vectors); faiss.write_index(index, sys.argv[3])"
    )
    index = root / "index"
    index.mkdir()
    subprocess.run([sys.executable, "-c", code, str(encoder), str(corpus), str(index / "index")], check=True)
    (index / "docid").write_text("".join(f"{passage.id}\n" for passage in passages))
    assert faiss.read_index(str(index / "index")).ntotal == 4
    return {"index": str(index), "encoder": str(encoder), "corpus": str(corpus)}


_SEARCH = """
import pickle, sys
from whale_env.retrieval import RetrieverError, opened
retriever = opened(sys.argv[1])
for words in ("the tower of paris", "the ocean of pacific"):
    found = retriever.search(words, 3)
    print([passage.id for passage in found], round(found[0].score, 4), found[0].text)
print(pickle.loads(pickle.dumps(retriever)).search("the river of rhine", 1)[0].id)
try:
    opened(sys.argv[2]).search("x", 1)
except RetrieverError as error:
    print(error)
"""


@pytest.mark.timeout(900)
@needs_faiss
def test_a_dense_index_is_searched(vectors: dict[str, str]) -> None:
    name = "faiss:{index}@sentence={encoder}@{corpus}".format(**vectors)
    absent = "faiss:{index}@sentence=no/such-model@{corpus}".format(**vectors)
    done = subprocess.run(
        [sys.executable, "-c", _SEARCH, name, absent], capture_output=True, text=True, timeout=250, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("['d0', ") and lines[0].endswith("1.0 the tower of paris")
    assert lines[1].startswith("['d3', ") and lines[2] == "d1"
    assert lines[3].startswith("cannot load the query encoder 'no/such-model' as 'sentence'")


@pytest.mark.timeout(900)
@needs_faiss
def test_a_dense_retriever_can_be_sent(vectors: dict[str, str]) -> None:
    retriever = dense.FaissRetriever(vectors["index"], f"sentence={vectors['encoder']}", vectors["corpus"])
    assert type(pickle.loads(pickle.dumps(retriever))) is dense.FaissRetriever
