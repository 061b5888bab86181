"""A model that knows the calibration set: it answers each question right, wrong, oddly or not at all, as a test decides."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Literal

from aiohttp import web

from classifier.measuring.questions import Question, calibration_set

Manner = Literal["right", "wrong", "odd", "refuse", "reject", "break"]
Manners = Callable[[Question], Manner]

BY_TEXT: Final[Mapping[str, Question]] = {each.text: each for each in calibration_set().questions}
PROMPT_TOKENS: Final = 100
"""What it bills for every prompt."""
OUTPUT_TOKENS: Final = 20


class Examinee:
    """Speaks OpenAI's wire, streams, and remembers what it was asked."""

    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.asked: list[Question] = []
        self.bodies: list[dict[str, Any]] = []
        self.url = ""
        self.hangs_after: int | None = None
        """After so many questions it thinks until `goes_on` is set."""
        self.hangs, self.goes_on = asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        question = BY_TEXT[body["messages"][-1]["content"]]
        self.asked.append(question)
        self.bodies.append(body)
        if self.hangs_after is not None and len(self.asked) > self.hangs_after:
            self.hangs.set()
            await self.goes_on.wait()
        manner = self.manners(question)
        if manner == "reject":
            error = {"message": "max_tokens is not supported with this model", "type": "invalid_request_error"}
            return web.json_response({"error": error}, status=400)
        if manner == "break":
            return web.json_response({"error": {"message": "broken", "type": "server_error"}}, status=500)
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        for delta in deltas(question, manner):
            event = {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            await reply.write(f"data: {json.dumps(event)}\n\n".encode())
        end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": 120}
        told = {**head, "choices": [], "usage": usage}
        await reply.write(f"data: {json.dumps(end)}\n\ndata: {json.dumps(told)}\n\ndata: [DONE]\n\n".encode())
        return reply


def deltas(question: Question, manner: Manner) -> list[dict[str, Any]]:
    """The pieces of an answer in this manner."""
    if manner == "refuse":
        return [{"role": "assistant", "content": ""}, {"refusal": "I'm sorry, but I can't help with that."}]
    if manner == "odd":
        return [
            {"role": "assistant", "content": "Well, that is a question that many have thought about at great length."}
        ]
    if question.kind == "tool" and manner == "right":
        if not question.calls:
            return [{"role": "assistant", "content": "None of the tools does that."}]
        calls = [
            {
                "index": at,
                "id": f"call_{at}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps({key: values[0] for key, values in call.arguments.items()}),
                },
            }
            for at, call in enumerate(question.calls)
        ]
        return [{"role": "assistant", "tool_calls": calls}]
    if question.kind == "tool":
        call = {"name": "get_balance", "arguments": '{"account": "0"}'}
        return [{"role": "assistant", "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": call}]}]
    said = question.gold if manner == "right" else wrong_answer(question)
    return [{"role": "assistant", "content": "Let me think."}, {"content": f"\n\n**Answer: {said}**"}]


def wrong_answer(question: Question) -> str:
    """An answer of the asked form that is not the right one."""
    if question.kind == "choice":
        return "B" if question.gold == "A" else "A"
    return "-987654321" if question.kind == "number" else "'nothing like it'"


def like(model: str) -> Manners:
    """As a known model did; what it was never asked it gets right."""
    at = calibration_set().models.index(model)
    return lambda question: "wrong" if question.outcomes[at : at + 1] == "0" else "right"


@contextlib.asynccontextmanager
async def examinee(manners: Manners) -> AsyncIterator[Examinee]:
    """One that is ready to be asked."""
    made = Examinee(manners)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.answer)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield made
    finally:
        await runner.cleanup()
