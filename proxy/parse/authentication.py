"""Authenticate stage: the caller that a request's key belongs to."""

from accounts.caller import Caller
from accounts.directory import Directory
from proxy.errors import NotAuthenticated
from proxy.parse.chat_request import RequestHeaders, key_of


async def caller_by_key(directory: Directory, headers: RequestHeaders) -> Caller:
    """The key's owner. Raises NotAuthenticated or an accounts error."""
    key = key_of(headers)
    if not key:
        raise NotAuthenticated("No API key was sent; use the header `Authorization: Bearer wb-…`.")
    return directory.lookup_fresh(key) or await directory.authenticate(key)
