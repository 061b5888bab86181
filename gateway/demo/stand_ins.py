"""Stand-ins for everything that the sample's gateway calls: a provider, three replicas with metrics, a webhook
receiver.

`python -m gateway.demo.stand_ins` prints where they listen as one JSON line, and ends with its parent.
"""

import asyncio
import json
import signal
import sys

from aiohttp import web

from gateway.demo.answers import answer_to
from gateway.demo.sample_config import REPLICAS
from gateway.process.parent_pipe import exit_with_parent
from testing.counting_server import CountingServer


async def _hook(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(status=204)


async def _listen(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def serve() -> None:
    """Serve until SIGTERM, SIGINT or the parent's end."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    hooks = web.Application()
    hooks.router.add_post("/hook", _hook)
    apps = (
        CountingServer("provider", answer_to).app(),
        hooks,
        *(CountingServer(name, answer_to).app() for name in REPLICAS),
    )
    listening = [await _listen(app) for app in apps]
    upstream, webhook, *replicas = [url for _, url in listening]
    told = {"upstream": f"{upstream}/v1", "webhook": f"{webhook}/hook", "replicas": replicas}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    try:
        await stop.wait()
    finally:
        for runner, _ in listening:
            await runner.cleanup()


if __name__ == "__main__":
    exit_with_parent()
    asyncio.run(serve())
