"""A sender in a process of its own, which a test kills: `python -m … DATABASE URL`."""

import asyncio
import sys

from api.webhooks.outbox import Outbox
from api.webhooks.sender import Destination, Sender
from api.webhooks.signature import signing_key
from gateway.database import make_engine
from tests.api.webhooks.receiver import SECRET


async def main(database: str, url: str) -> None:
    ops = Destination(name="ops", url=url, keys=(signing_key(SECRET),))
    await Sender(Outbox(make_engine(database)), {"ops": ops}).run(poll_s=0.01)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
