"""The reference of benchmarks: a bare FastAPI + aiohttp relay of the same body, with nothing else in it.

python -m benchmarks.relay --upstream http://127.0.0.1:9000
"""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import Response, StreamingResponse


def build_relay(upstream: str) -> FastAPI:
    url = f"{upstream}/v1/chat/completions"

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            app.state.session = session
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response(b"{}", media_type="application/json")

    @app.post("/v1/chat/completions")
    async def relay(request: Request) -> Response:
        body = await request.body()
        session: aiohttp.ClientSession = app.state.session
        reply = await session.post(url, data=body, headers={"content-type": "application/json"})
        if b'"stream":true' in body:
            return StreamingResponse(_pieces(reply), status_code=reply.status, media_type="text/event-stream")
        async with reply:
            return Response(await reply.read(), status_code=reply.status, media_type="application/json")

    return app


async def _pieces(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with reply:
        async for piece in reply.content.iter_any():
            yield piece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    arguments = parser.parse_args()
    uvicorn.run(
        build_relay(arguments.upstream),
        host="127.0.0.1",
        port=arguments.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        backlog=4096,
    )


if __name__ == "__main__":
    main()
