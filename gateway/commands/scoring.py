"""Scores of many prompts at once: each line of a file is the body of a chat completion."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from classifier.config import ClassifierSection
from classifier.explanation import EXPLAINED
from classifier.onnx_classifier import OnnxClassifier, load_classifier
from gateway.commands.explain import DryRun
from gateway.configuration.gateway_config import GatewayConfig
from proxy.errors import Refused
from proxy.parse.chat_request import AUTO, input_tokens, parse_chat, prompt_of
from proxy.parse.headers import RequestHeaders

MAX_LINE_BYTES: Final = 20_000_000
BINS: Final = 10
TIER_NAMES: Final = ("look-up or pleasantry", "everyday work", "skilled work", "expertise")
"""The work that the tiers 0 to 3 stand for; complexity is the expected tier / 3."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One line's score. With `error` the line is no chat completion, and the rest is empty."""

    line: int
    complexity: float | None = None
    kind: str = ""
    classifier: str = ""
    input_tokens: int | None = None
    expected_output_tokens: int | None = None
    outlooks: dict[str, float] = {}
    """P(adequate) by target."""
    choice: str | None = None
    """The target that `auto` would choose; None without a configuration, or where none can serve it."""
    why: str = ""
    error: str = ""


def scored(lines: Iterable[bytes], config: GatewayConfig | None) -> Iterator[Score]:
    """Score every line that is not blank, in order. Without a configuration nothing is chosen."""
    score = _with_config(config) if config is not None else _alone()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield score(number, _body(line))
            except (Refused, ValueError) as error:
                told = error.message if isinstance(error, Refused) else str(error)
                yield Score(line=number, error=told)


def _body(line: bytes) -> bytes:
    """Return the line as a request for `auto`. Raises ValueError with what is wrong with it."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(found, dict) or "messages" not in found:
        raise ValueError('not the body of a chat completion: expected an object with "messages"')
    return json.dumps({**found, "model": AUTO, "stream": False}).encode()


def _with_config(config: GatewayConfig) -> Callable[[int, bytes], Score]:
    dry_run = DryRun(config)

    def score(number: int, body: bytes) -> Score:
        told = dry_run.explain(parse_chat(body, RequestHeaders(tier="interactive")), "interactive")
        first = told.candidates[0] if told.candidates else None
        return Score(
            line=number,
            complexity=told.complexity,
            kind=told.kind,
            classifier=told.classifier,
            input_tokens=told.input_tokens,
            expected_output_tokens=told.expected_output_tokens,
            outlooks={each["target"]: each["adequate"] for each in told.outlooks},
            choice=first["target"] if first else None,
            why=first["reason"] if first else (told.refusal or ""),
        )

    return score


def _alone() -> Callable[[int, bytes], Score]:
    classifier = load_classifier(ClassifierSection())
    if isinstance(classifier, OnnxClassifier):
        classifier.adopt({name: name for name in classifier.manifest.abilities if name in EXPLAINED})

    def score(number: int, body: bytes) -> Score:
        request = parse_chat(body, RequestHeaders(tier="interactive"))
        prompt = prompt_of(request)
        found = classifier.classify(prompt)
        return Score(
            line=number,
            complexity=round(found.complexity, 4),
            kind=found.kind,
            classifier=found.source,
            input_tokens=input_tokens(request, prompt),
            expected_output_tokens=found.expected_output_tokens,
            outlooks={name: round(each.adequate, 4) for name, each in sorted(found.outlooks.items())},
        )

    return score


def histogram(scores: Iterable[float]) -> list[int]:
    """Return the number of scores in each of BINS even parts of [0, 1]."""
    counts = [0] * BINS
    for score in scores:
        counts[min(BINS - 1, int(score * BINS))] += 1
    return counts
