"""What is asked of a moderation service, and what its reply means. Pure: proxy/shared/moderation_client.py asks.

Three shapes are spoken: OpenAI's `/v1/moderations`, the generic guardrail of LiteLLM, and Llama Guard as a chat model. Whatever is
not clearly a verdict is an OddReply, which is never a pass; a verdict that was delivered counts, whatever else is odd beside it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, assert_never

import msgspec

from settings.decoding import DECODE_ERRORS

Shape = Literal["openai", "litellm", "llama_guard"]
Direction = Literal["input", "output"]

PIECE_CHARS: Final = 4_000
"""OpenAI's service gives the scores of an empty text, and no error, for one of several thousand tokens."""
OVERLAP_CHARS: Final = 200
MOST_PIECES: Final = 256
INPUTS_A_CALL: Final = 16
MOST_BODY_BYTES: Final = 4 * 2**20
_MOST_CATEGORIES: Final = 64
_MOST_NAME_CHARS: Final = 64
_MOST_TOKENS: Final = 40
_CODE: Final = re.compile(r"\bS[0-9]{1,2}\b")
_VERDICT: Final = re.compile(r"\s*(safe|unsafe)\b", re.IGNORECASE)


UNNAMED: Final = "flagged"
"""What is said where a service only says yes."""


class OddReply(Exception):
    """A reply that holds no verdict. The message says what is wrong in words of ours, with nothing of the reply."""


class TooLong(Exception):
    """Texts of more pieces than are asked about."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a service says of the texts, all together."""

    flagged: bool | None
    """None where it gave scores alone."""
    categories: frozenset[str] = frozenset()
    """Those that it named; none is named where it only said yes."""
    scores: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The highest of each category."""
    texts: tuple[str, ...] | None = None
    """The texts as the service wants them instead."""
    partial: bool = False
    """True where it says nothing of some of the texts: it may forbid, and cannot allow."""


class Call(msgspec.Struct, frozen=True):
    """A body to post, and the number of texts that it asks about."""

    body: bytes
    texts: int


def calls(shape: Shape, texts: Sequence[str], direction: Direction, model: str | None) -> list[Call]:
    """Return what to post. Raises TooLong."""
    match shape:
        case "openai":
            pieces = _pieces(texts)
            groups = [pieces[at : at + INPUTS_A_CALL] for at in range(0, len(pieces), INPUTS_A_CALL)]
            named = {} if model is None else {"model": model}
            return [Call(msgspec.json.encode({"input": group, **named}), len(group)) for group in groups]
        case "litellm":
            asked = {"texts": list(texts), "input_type": "request" if direction == "input" else "response"}
            body = msgspec.json.encode(asked)
            if len(body) > MOST_BODY_BYTES:
                raise TooLong
            return [Call(body, len(texts))]
        case "llama_guard":
            return [Call(_chat(piece, direction, model), 1) for piece in _pieces(texts)]
        case _:
            assert_never(shape)


def _pieces(texts: Sequence[str]) -> list[str]:
    found: list[str] = []
    for text in texts:
        step = PIECE_CHARS - OVERLAP_CHARS
        found += [text[at : at + PIECE_CHARS] for at in range(0, max(1, len(text) - OVERLAP_CHARS), step)]
        if len(found) > MOST_PIECES:
            raise TooLong
    return found


def _chat(text: str, direction: Direction, model: str | None) -> bytes:
    """Return a chat call: the model judges the last message, by its own template."""
    messages = [{"role": "user", "content": text}]
    if direction == "output":
        messages = [{"role": "user", "content": "-"}, {"role": "assistant", "content": text}]
    return msgspec.json.encode({"model": model, "messages": messages, "temperature": 0, "max_tokens": _MOST_TOKENS})


def verdict(shape: Shape, body: bytes, texts: int) -> Verdict:
    """Return what a reply means; `texts` is the number that was asked about. Raises OddReply."""
    try:
        said = msgspec.json.decode(body)
    except DECODE_ERRORS:
        raise OddReply("it is not JSON") from None
    if not isinstance(said, dict):
        raise OddReply("it is no object")
    match shape:
        case "openai":
            return _of_moderations(said, texts)
        case "litellm":
            return _of_guardrail(said, texts)
        case "llama_guard":
            return _of_chat(said)
        case _:
            assert_never(shape)


def together(verdicts: Sequence[Verdict], *, partial: bool = False) -> Verdict:
    """Return the verdict on all texts, of those on parts of them; `partial` where parts are missing."""
    if len(verdicts) == 1 and not partial:
        return verdicts[0]
    flags = [each.flagged for each in verdicts]
    scores: dict[str, float] = {}
    for each in verdicts:
        for name, score in each.scores.items():
            scores[name] = max(score, scores.get(name, 0.0))
    return Verdict(
        flagged=True if True in flags else None if None in flags else False,
        categories=frozenset().union(*(each.categories for each in verdicts)),
        scores=scores,
        partial=partial or any(each.partial for each in verdicts),
    )


def found(verdict: Verdict, categories: Sequence[str] | None, thresholds: Mapping[str, float]) -> list[str]:
    """Return the categories for which a rule has to act, none where it has not.

    A rule without `categories` takes all. A service's own yes counts beside `thresholds`, and when it names no category it
    counts for every rule. Raises OddReply where neither yes nor no can be read from it.
    """
    over = {name for name, least in thresholds.items() if verdict.scores.get(name, 0.0) >= least}
    named = verdict.categories
    if verdict.flagged and not named:
        over.add(UNNAMED)
    if categories is not None:
        named = named.intersection(categories)
    names = sorted(over | named)
    if not names and verdict.partial:
        raise OddReply("it says nothing of some of the texts")
    if not names and verdict.flagged is None and not (thresholds and verdict.scores.keys() >= thresholds.keys()):
        raise OddReply("it gives scores alone, and not of every category with a threshold")
    return names


def _of_moderations(said: dict[str, Any], texts: int) -> Verdict:
    results = said.get("results")
    if not isinstance(results, list):
        raise OddReply("it has no list `results`")
    read = [_of_result(each) for each in results]
    verdicts = [each for each in read if each is not None]
    partial = bool(said.get("error")) or len(results) != texts or len(verdicts) != len(read)
    # What was flagged stays so, whatever else the reply is like.
    if partial and not any(each.flagged for each in verdicts):
        raise OddReply("it has not a yes or no for each text")
    return together(verdicts, partial=partial)


def _of_result(said: object) -> Verdict | None:
    """Return what one result says; None where that cannot be read."""
    if not isinstance(said, dict):
        return None
    flagged = said.get("flagged")
    named = _named(said.get("categories"))
    scores = _scores(said.get("category_scores"))
    if flagged is True or named:
        return Verdict(flagged=True, categories=frozenset(named or ()), scores=scores or {})
    if flagged is False:
        return Verdict(flagged=False, scores=scores or {})
    if flagged is None and scores:
        return Verdict(flagged=None, scores=scores)
    return None


def _named(said: object) -> list[str] | None:
    """Return the categories that apply: true ones of an object, or those of a list; None where there are none to read."""
    if isinstance(said, dict):
        return [_name(name) for name, applies in _first(said.items()) if applies is True]
    if isinstance(said, list):
        return [_name(name) for name in _first(said) if isinstance(name, str)]
    return None


def _first(items: Any) -> Iterator[Any]:
    for count, item in enumerate(items):
        if count >= _MOST_CATEGORIES:
            return
        yield item


def _name(said: str) -> str:
    """Return a category's name as it may stand in a header or a log."""
    return "".join(
        char if char.isascii() and (char.isalnum() or char in "/_-.") else "_" for char in said[:_MOST_NAME_CHARS]
    )


def _scores(said: object) -> dict[str, float] | None:
    if not isinstance(said, dict):
        return None
    scores = {_name(name): _score(value) for name, value in _first(said.items())}
    return {name: score for name, score in scores.items() if score is not None}


def _score(said: object) -> float | None:
    if isinstance(said, bool) or not isinstance(said, int | float) or not math.isfinite(said):
        return None
    return float(said) if 0 <= said <= 1 else None


def _of_guardrail(said: dict[str, Any], texts: int) -> Verdict:
    match said.get("action"):
        case "BLOCKED":
            return Verdict(flagged=True, categories=frozenset({"blocked"}))
        case "NONE":
            return Verdict(flagged=False)
        case "GUARDRAIL_INTERVENED":
            instead = said.get("texts")
            if (
                not isinstance(instead, list)
                or len(instead) != texts
                or not all(isinstance(each, str) for each in instead)
            ):
                raise OddReply("it intervened, and does not give every text anew")
            return Verdict(flagged=False, texts=tuple(instead))
        case _:
            raise OddReply("its `action` is none of NONE, BLOCKED and GUARDRAIL_INTERVENED")


def _of_chat(said: dict[str, Any]) -> Verdict:
    try:
        content = said["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        content = None
    return verdict_in(content)


def verdict_in(content: object) -> Verdict:
    """Return what a model said that answers like Llama Guard. Raises OddReply."""
    said = content if isinstance(content, str) else ""
    begins = _VERDICT.match(said)
    if begins is None:
        raise OddReply("the model answered neither `safe` nor `unsafe`")
    rest = said[begins.end() :]
    codes = _CODE.findall(rest)
    if begins[1].lower() == "unsafe":
        return Verdict(flagged=True, categories=frozenset(codes[:_MOST_CATEGORIES]))
    if rest.strip(" \t\r\n.!*`\"'"):
        raise OddReply("the model said more than `safe`")
    return Verdict(flagged=False)
