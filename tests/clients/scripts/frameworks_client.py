"""Frameworks on OpenAI's chat: dspy, haystack, instructor, LiteLLM, llm and smolagents, each as its manual shows it."""

import json
import os
from typing import Any

# None of them shall look anything up elsewhere.
os.environ |= {"HAYSTACK_TELEMETRY_ENABLED": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

import dspy
import instructor
import litellm
import openai
import pydantic
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from llm.default_plugins.openai_models import Chat
from smolagents import OpenAIModel
from smolagents.models import ChatMessage as AgentMessage

URL, KEY = f"{os.environ['WEIGHBRIDGE_URL']}/v1", os.environ["WEIGHBRIDGE_KEY"]
ASK: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weigh", "parameters": {"type": "object", "properties": {"kg": {"type": "integer"}}}},
}


class Answer(pydantic.BaseModel):
    """What the scripted model answers where JSON is wanted."""

    answer: int


def of_litellm() -> dict[str, Any]:
    """Whole, streamed, and with a tool."""
    where: Any = {"api_base": URL, "api_key": KEY, "messages": ASK}
    whole: Any = litellm.completion(model="openai/auto", **where)
    streamed: Any = litellm.completion(model="openai/auto", stream=True, **where)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    called: Any = litellm.completion(model="openai/tools", tools=[TOOL], **where)
    return {
        "litellm": whole.choices[0].message.content,
        "litellm_streamed": text,
        "litellm_tool": called.choices[0].message.tool_calls[0].function.arguments,
    }


def of_llm() -> str:
    """A model at an address of one's own."""
    model = Chat("auto", api_base=URL)
    model.key = KEY
    return "".join(model.prompt("hi", stream=True))


def main() -> None:
    """Prints what came."""
    structured = instructor.from_openai(openai.OpenAI(), mode=instructor.Mode.JSON)
    parsed = structured.chat.completions.create(model="json", response_model=Answer, messages=ASK)
    generator = OpenAIChatGenerator(model="auto", api_base_url=URL, api_key=Secret.from_token(KEY))
    replies = generator.run([ChatMessage.from_user("hi")])["replies"]
    agent = OpenAIModel(model_id="auto", api_base=URL, api_key=KEY)
    asked: Any = [AgentMessage(role="user", content=[{"type": "text", "text": "hi"}])]
    seen = of_litellm() | {
        "instructor": parsed.answer,
        "haystack": replies[0].text,
        "smolagents": agent.generate(asked).content,
        "dspy": dspy.LM("openai/auto", api_base=URL, api_key=KEY, cache=False)("hi")[0],
        "llm": of_llm(),
    }
    print(json.dumps(seen))


main()
