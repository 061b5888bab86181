"""Reading of JSON request bodies, within limits of time and size."""

import asyncio
from typing import Final

from fastapi import Request
from starlette.requests import ClientDisconnect

from proxy.errors import BadRequest, BodyTooLarge, UploadTimeout
from proxy.parse.chat_request import not_json
from proxy.parse.json_bounds import check_structure, is_heavy

MANY_REQUESTS: Final = 8
"""Requests of the fullest kind that a batch in one body may come to."""


async def read_body(request: Request, *, timeout_s: float, most_bytes: int, requests: int = 1) -> bytes:
    """Return the whole body, in UTF-8. With `requests` the limit of size is that of as many requests. Raises
    BodyTooLarge, UploadTimeout, or BadRequest when there is too much in it, when it is in another encoding or when the
    client disconnects.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most_bytes:
                    raise BodyTooLarge(f"The body is larger than {most_bytes} bytes, which nobody needs here.")
    except TimeoutError as error:
        raise UploadTimeout(f"The request body did not arrive within {timeout_s:g} s.") from error
    except ClientDisconnect as error:
        # The client is gone, so nobody reads this error.
        raise BadRequest("The connection was closed before the body was complete.") from error
    whole = bytes(body)
    try:
        # Here and not where it is decoded: a decoder looks only at the texts that it keeps, and what is kept unread is stored.
        whole.decode()
    except UnicodeDecodeError as error:
        raise not_json(whole, error) from error
    if is_heavy(whole):
        await asyncio.to_thread(check_structure, whole, requests)
    return whole
