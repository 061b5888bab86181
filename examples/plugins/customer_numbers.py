"""A guard: masks the house's customer numbers, and blocks what mentions a project that nobody may speak of."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from weighbridge.plugins import RequestFacts, Span, Text, Verdict

_NUMBER = re.compile(r"\bK-[0-9]{6}\b")


@dataclass(frozen=True)
class Words:
    """What the configuration's `settings` may say."""

    secret_projects: list[str] = field(default_factory=list)


class CustomerNumbers:
    protocol = 1
    Settings = Words

    def __init__(self, settings: Words) -> None:
        self._projects = [each.lower() for each in settings.secret_projects]

    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        for text in texts:
            words = text.value.lower()
            if any(project in words for project in self._projects):
                return Verdict(action="block", name="secret-project")
        spans = tuple(
            Span(text=place, start=found.start(), end=found.end(), kind="customer-number")
            for place, text in enumerate(texts)
            for found in _NUMBER.finditer(text.value)
        )
        return Verdict(action="mask", spans=spans, name="customer-number") if spans else Verdict()
