"""LangChain: chat, responses and completions, with streams, tools and schemas."""

import json
from typing import Any

import pydantic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI


class Answer(pydantic.BaseModel):
    """What the scripted model answers where JSON is wanted."""

    answer: int


@tool
def weigh(kg: int) -> str:
    """Weigh something."""
    return f"{kg} kg"


def seen_of(**options: Any) -> list[Any]:
    """Text, streamed text, a tool's arguments and an answer by its schema."""
    plain = ChatOpenAI(model="auto", **options)
    streamed: Any = None
    for piece in plain.stream("hi"):
        streamed = piece if streamed is None else streamed + piece
    called = ChatOpenAI(model="tools", **options).bind_tools([weigh]).invoke("hi")
    parsed: Any = ChatOpenAI(model="json", **options).with_structured_output(Answer).invoke("hi")
    return [plain.invoke("hi").text, streamed.text, called.tool_calls[0]["args"], parsed.answer]


def main() -> None:
    """Prints what came."""
    seen = {
        "chat": seen_of(use_responses_api=False),
        "responses": seen_of(use_responses_api=True),
        "completions": OpenAI(model="auto").invoke("hi"),
    }
    print(json.dumps(seen))


main()
