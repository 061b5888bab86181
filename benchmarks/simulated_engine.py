"""A simulated engine in real time: Llama 3 70B on four H100 as the planner reckons its steps, behind vLLM's routes.

    python -m benchmarks.simulated_engine --port 9000

It is `planner.simulate.engine` on the wall clock: chunked prompts, no step interrupted, priority for what waits, and what was
read of a prompt is kept. How long a prompt and its answer are stands at the beginning of the prompt, as `text_of` writes it; a prompt may be
cut off as vLLM cuts it (`truncate_prompt_tokens`). A stream brings its first token when it is
computed and the others in one event at the end. GET `/done` answers with what was answered so far.
"""

import argparse
import asyncio
import re
import sys
import time
from typing import Any, Final

import msgspec
import uvloop
from aiohttp import web

from planner.simulate.engine import NEVER, Engine, Happening, Job
from planner.simulate.machines import Machine, machine_of

_SIZES: Final = re.compile(rb"\[(\d+): (\d+) in, (\d+) out\]")
_BYTES_PER_TOKEN: Final = 4
_MOST_TOKENS: Final = 100_000
_KEPT_TOKENS: Final = 64
"""Tokens of a block, the unit in which it keeps read prompts; vLLM's have 16."""
_HELD: Final = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
NAME: Final = "simulated"


class Done(msgspec.Struct):
    """Requests answered so far."""

    interactive: int = 0
    batch: int = 0


def text_of(number: int, prompt: int, answer: int) -> str:
    """Return a message of about so many tokens that begins like no other, and says how long its answer is."""
    head = f"[{number}: {prompt} in, {answer} out]"
    return head + " ton" * max(0, prompt - len(head) // _BYTES_PER_TOKEN)


def paced_machine(slower: float = 1.0) -> Machine:
    """Return the machine of the simulated day, with steps that take so many times as long."""
    machine = machine_of(max_num_seqs=64, max_num_batched_tokens=2_048)
    spec = msgspec.structs.replace(machine.engine, priority_scheduling=True, shared_tokens=_KEPT_TOKENS)
    return msgspec.structs.replace(machine, engine=spec, steps=machine.steps.slower(slower))


class Paced:
    """The engine, and who waits for what it gives."""

    def __init__(self, machine: Machine) -> None:
        self._engine = Engine(machine.engine, machine.steps, self._happened)
        self._capacity = machine.engine.max_num_seqs
        self._waiting: dict[Job, tuple[asyncio.Event, asyncio.Event]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: set[Job] = set()
        """Requests of which a step only reads a part of the prompt."""
        self.done = Done()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 22)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/done", self._told)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    def _happened(self, _at: float, what: Happening, job: Job) -> None:
        first, done = self._waiting[job]
        first.set()
        if what == "done":
            done.set()
            del self._waiting[job]
            if job in self._pieces:
                self._pieces.discard(job)
            elif job.priority:
                self.done.batch += 1
            else:
                self.done.interactive += 1

    def _go_on(self) -> None:
        """Simulate the steps that are over by now, and look again at the end of the running one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._engine.advance(time.monotonic())
        if self._engine.ends != NEVER:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._engine.ends - time.monotonic()), self._go_on)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        sizes = _SIZES.search(raw)
        if sizes is None:
            return web.json_response({"error": {"message": "the prompt does not say how long it is"}}, status=400)
        number, prompt, answer = (min(_MOST_TOKENS, max(1, int(each))) for each in sizes.groups())
        asked: dict[str, Any] = msgspec.json.decode(raw)
        if "truncate_prompt_tokens" in asked:
            prompt, answer = min(prompt, int(asked["truncate_prompt_tokens"])), int(asked["max_tokens"])
        now = time.monotonic()
        job = Job(
            arrived_at=now,
            prompt_tokens=prompt,
            output_tokens=answer,
            # As many as there are, each another prompt's or another part's.
            blocks=tuple(number * _MOST_TOKENS + each for each in range(prompt // _KEPT_TOKENS)),
            priority=int(asked.get("priority", 0)),
        )
        if "truncate_prompt_tokens" in asked:
            self._pieces.add(job)
        first, done = self._waiting[job] = (asyncio.Event(), asyncio.Event())
        self._engine.advance(now)
        self._engine.enqueue(job, now)
        self._go_on()
        base = {"id": "chatcmpl-simulated", "created": 1_700_000_000, "model": NAME}
        if not asked.get("stream"):
            await done.wait()
            usage = _usage(job)
            message = {"role": "assistant", "content": "The weigh is over."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        chunk = {**base, "object": "chat.completion.chunk"}

        async def event(choices: list[dict[str, Any]], **more: Any) -> None:
            await reply.write(b"data: " + msgspec.json.encode({**chunk, "choices": choices, **more}) + b"\n\n")

        await first.wait()
        await event([{"index": 0, "delta": {"role": "assistant", "content": "The"}, "finish_reason": None}])
        await done.wait()
        await event([{"index": 0, "delta": {"content": " weigh is over."}, "finish_reason": "stop"}])
        await event([], usage=_usage(job))
        await reply.write(b"data: [DONE]\n\n")
        return reply

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": NAME, "object": "model"}]})

    async def _told(self, _request: web.Request) -> web.Response:
        return web.json_response(msgspec.to_builtins(self.done))

    async def _metrics(self, _request: web.Request) -> web.Response:
        stats = self._engine.stats(time.monotonic())
        figures = {
            **dict(zip(_HELD, (stats.running, stats.waiting, stats.kv_usage or 0.0), strict=True)),
            "prefix_cache_queries_total": stats.prefix_queries or 0.0,
            "prefix_cache_hits_total": stats.prefix_hits or 0.0,
            "prompt_tokens_total": stats.prompt_tokens or 0.0,
            "generation_tokens_total": stats.output_tokens or 0.0,
        }
        labels = f'{{engine="0",model_name="{NAME}"}}'
        lines = [f"vllm:{name}{labels} {float(value)}" for name, value in figures.items()]
        blocks = (stats.kv_tokens or 0) // (stats.block_tokens or 16)
        lines.append(
            f'vllm:cache_config_info{{block_size="{stats.block_tokens}",engine="0",num_gpu_blocks="{blocks}"}} 1.0'
        )
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")


def _usage(job: Job) -> dict[str, Any]:
    return {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": job.output_tokens,
        "total_tokens": job.prompt_tokens + job.output_tokens,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens},
    }


async def _serve(port: int, slower: float) -> None:
    runner = web.AppRunner(Paced(paced_machine(slower)).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slower", type=float, default=1.0)
    asked = parser.parse_args()
    uvloop.run(_serve(asked.port, asked.slower))


if __name__ == "__main__":
    main()
