"""Plug-ins that hold the event loop, for gateways that run as processes."""

import time
from collections.abc import Mapping, Sequence

from weighbridge.plugins import Candidate, Identity, RequestFacts, Score

_LONG_S = 600


class HangingScorer:
    protocol = 1

    def score(self, facts: RequestFacts, candidates: Sequence[Candidate]) -> Sequence[Score]:
        time.sleep(_LONG_S)
        return []


class LoopingAuthenticator:
    protocol = 1

    async def caller(self, headers: Mapping[str, str]) -> Identity | None:
        while "x-user" in headers:
            pass
        return None
