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
        named = "|".join(re.escape(each) for each in settings.secret_projects)
        self._projects = re.compile(named, re.IGNORECASE) if named else None

    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        # With its places: in earlier turns, where nothing is refused, it is masked by them.
        named = _found(self._projects, "secret-project", texts) if self._projects else ()
        if named:
            return Verdict(
                action="block", spans=named + _found(_NUMBER, "customer-number", texts), name="secret-project"
            )
        numbers = _found(_NUMBER, "customer-number", texts)
        return Verdict(action="mask", spans=numbers, name="customer-number") if numbers else Verdict()


def _found(pattern: re.Pattern[str], kind: str, texts: Sequence[Text]) -> tuple[Span, ...]:
    return tuple(
        Span(text=place, start=found.start(), end=found.end(), kind=kind)
        for place, text in enumerate(texts)
        for found in pattern.finditer(text.value)
    )
