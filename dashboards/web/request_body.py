"""Reading of JSON request bodies, within limits of time and size."""

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from proxy.errors import BadRequest, BodyTooLarge, UploadTimeout
from proxy.request import not_json


async def read_body(request: Request, *, timeout_s: float, most_bytes: int) -> bytes:
    """The whole body, in UTF-8. Raises BodyTooLarge, UploadTimeout, or BadRequest when it is in another encoding or the client
    disconnects.
    """
    body = b""
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
    try:
        # Here and not where it is decoded: a decoder looks only at the texts that it keeps, and what is kept unread is stored.
        body.decode()
    except UnicodeDecodeError as error:
        raise not_json(body, error) from error
    return body
