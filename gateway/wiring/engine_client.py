"""Wiring of what a process asks of engines beside requests: loading adapters, and their tokenizer."""

import contextlib

from selfhosted.engines.fetching import EngineKey
from selfhosted.engines.scrape import HttpFetch, engine_session
from selfhosted.kv_events.tokenizing import HttpTokenize


class EngineClient:
    """One HTTP session to the engines of all pools."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._session = engine_session()
        stack.push_async_callback(self._session.close)

    def fetch(self, api_key: EngineKey) -> HttpFetch:
        return HttpFetch(self._session, api_key)

    def tokenize(self, api_key: EngineKey) -> HttpTokenize:
        return HttpTokenize(self._session, api_key)
