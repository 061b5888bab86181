"""Guards of plug-ins: closed, whatever goes wrong with them (LiteLLM 30728, 38568; floe-guard 92)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.plugins.calls import Calls
from gateway.plugins.guarding import Guarding
from proxy.errors import PluginUnavailable
from tests.gateway.plugins.told import Told
from weighbridge.plugins import RequestFacts, Span, Text, Verdict
from weighbridge.plugins.testing import sample_request, sample_texts


class Says:
    protocol = 1

    def __init__(self, verdict: Any) -> None:
        self._verdict = verdict

    async def check(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        if isinstance(self._verdict, BaseException):
            raise self._verdict
        if self._verdict == "late":
            await asyncio.sleep(30)
        return self._verdict  # type: ignore[no-any-return]


def guarding(verdict: Any) -> Guarding:
    return Guarding(Says(verdict), Calls("house", 0.05, Told()))


async def test_a_verdict_is_passed_on() -> None:
    """As it is."""
    found = Verdict(action="mask", spans=(Span(text=0, start=0, end=6, kind="word"),))
    assert await guarding(found).judge(sample_texts(), sample_request()) is found


@pytest.mark.parametrize(
    "broken",
    [
        None,
        "late",
        True,
        ValueError("4111 1111 1111 1111"),
        TimeoutError(),
        Verdict(action="allow"),  # type: ignore[arg-type]
        Verdict(action="mask"),
        Verdict(action="mask", spans=(Span(text=9, start=0, end=1, kind="word"),)),
    ],
    ids=repr,
)
async def test_whoever_gives_no_verdict_lets_nothing_pass(broken: Any) -> None:
    """Nothing is not yes, an odd action is not yes, and what was raised is repeated nowhere."""
    with pytest.raises(PluginUnavailable, match="cannot be checked right now, as the plug-in house") as refused:
        await guarding(broken).judge(sample_texts(), sample_request())
    assert "4111 1111" not in str(refused.value)
