"""Reply types of POST /v1/ask, and how an answer is told in them."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

import msgspec

from api.ask.answer import PartKind
from api.ask.conversation import Answered, Step
from api.web.reading import known_usd


class AnswerPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the answer. A `figure` has the page of its rows and its reference; an `unverified` one stands in no result."""

    text: str
    kind: PartKind
    href: str | None = None
    ref: str | None = None


class AnswerStep(msgspec.Struct, frozen=True, kw_only=True):
    """A look-up: its arguments, and its rows with the page of each, or why there are none."""

    tool: str
    asked: dict[str, Any]
    ref: str | None
    title: str | None
    href: str | None
    rows: list[dict[str, Any]]
    hrefs: list[str]
    total: dict[str, Any]
    has_more: bool
    problem: str | None


class AskAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question."""

    text: str
    parts: list[AnswerPart]
    unverified: list[str]
    steps: list[AnswerStep]
    model: str
    cost_usd: Decimal | None
    request_ids: list[str]
    object: Literal["ask.answer"] = "ask.answer"


def answer_of(steps: Sequence[Step], answered: Answered) -> AskAnswer:
    """Return an answer and its steps as programs read them."""
    parts: list[AnswerPart] = []
    for at, line in enumerate(answered.lines):
        if at:
            parts.append(AnswerPart(text="\n", kind="text"))
        parts += [
            AnswerPart(text=each.text, kind=each.kind, href=each.href or None, ref=each.ref or None) for each in line
        ]
    return AskAnswer(
        text="".join(part.text for part in parts),
        parts=parts,
        unverified=answered.unverified,
        steps=[_step(each) for each in steps],
        model=answered.model,
        cost_usd=known_usd(answered.cost_nanousd),
        request_ids=list(answered.request_ids),
    )


def _step(step: Step) -> AnswerStep:
    found = step.found
    rows: Sequence[Mapping[str, Any]] = () if found is None else found.rows
    return AnswerStep(
        tool=step.tool,
        asked=dict(step.asked),
        ref=step.ref or None,
        title=None if found is None else found.title,
        href=None if found is None else found.href or None,
        rows=[dict(row) for row in rows],
        hrefs=[] if found is None else [found.link(at) for at in range(len(rows))],
        total={} if found is None else dict(found.total),
        has_more=found is not None and found.more,
        problem=step.problem or None,
    )
