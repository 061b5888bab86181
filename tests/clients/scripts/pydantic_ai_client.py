"""pydantic-ai on both of its models for OpenAI: text, streams, tools and schemas."""

import asyncio
import json
from typing import Any

import pydantic
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


class Answer(pydantic.BaseModel):
    """What the scripted model answers where JSON is wanted."""

    answer: int


class Weighed(pydantic.BaseModel):
    """What it calls its tool with."""

    kg: int


async def seen_of(kind: Any) -> list[Any]:
    """Text, streamed text, a tool's arguments and an answer by its schema."""
    plain: Any = Agent(kind("auto"))
    whole = await plain.run("hi")
    async with plain.run_stream("hi") as stream:
        streamed = await stream.get_output()
    called: Any = await Agent(kind("tools"), output_type=ToolOutput(Weighed, name="weigh")).run("hi")
    parsed: Any = await Agent(kind("json"), output_type=NativeOutput(Answer)).run("hi")
    return [whole.output, streamed, called.output.kg, parsed.output.answer]


async def main() -> None:
    """Prints what came."""
    print(json.dumps({"chat": await seen_of(OpenAIChatModel), "responses": await seen_of(OpenAIResponsesModel)}))


asyncio.run(main())
