"""The id of a request: ours, never the caller's. It stands in the reply, the logs and the ledger."""

import secrets
import time
from typing import Final

REQUEST_ID_HEADER: Final = b"x-request-id"


def new_request_id() -> str:
    """Milliseconds since the epoch, then 64 random bits.

    Ids that grow with time are a third cheaper to insert into the ledger's index than random ones.
    """
    return f"req_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"
