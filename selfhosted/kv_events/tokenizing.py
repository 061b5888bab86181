"""The engines' own tokenizer, over HTTP."""

from collections.abc import Sequence
from typing import Annotated, Final

import aiohttp
import msgspec

from selfhosted.engines.fetching import EngineKey, no_key
from selfhosted.kv_events.sampling import TokenizeFailed
from settings.decoding import DECODE_ERRORS

_MOST_ANSWER_BYTES: Final = 4_000_000
_OK: Final = 200


class _Tokens(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]]


class HttpTokenize:
    """A tokenizer by POST /tokenize, with limits on time and size."""

    def __init__(self, session: aiohttp.ClientSession, api_key: EngineKey = no_key, *, timeout_s: float = 5.0) -> None:
        self._session = session
        self._api_key = api_key
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __call__(self, url: str, body: bytes) -> Sequence[int]:
        key = self._api_key()
        headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
        try:
            async with self._session.post(
                f"{url}/tokenize", data=body, headers=headers, timeout=self._timeout, allow_redirects=False
            ) as answer:
                if answer.status != _OK:
                    raise TokenizeFailed(f"/tokenize answered {answer.status}")
                page = bytearray()
                async for part in answer.content.iter_any():
                    page += part
                    if len(page) > _MOST_ANSWER_BYTES:
                        raise TokenizeFailed("/tokenize answered too much")
                return msgspec.json.decode(page, type=_Tokens).tokens
        except (aiohttp.ClientError, TimeoutError, OSError, *DECODE_ERRORS) as failure:
            raise TokenizeFailed(type(failure).__name__) from failure
