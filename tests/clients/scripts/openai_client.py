"""OpenAI's client: chat, responses, conversations, the background, tools, schemas, streams and Azure's form."""

import json
import os
import time
from typing import Any

import openai
import pydantic

URL, KEY = os.environ["WEIGHBRIDGE_URL"], os.environ["WEIGHBRIDGE_KEY"]
ASK: Any = [{"role": "user", "content": "hi"}]
_DOT = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHOW: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": _DOT}}]}]
PARAMETERS = {
    "type": "object",
    "properties": {"kg": {"type": "integer"}},
    "required": ["kg"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "weigh", "strict": True, "parameters": PARAMETERS}}
RESPONSES_TOOL: Any = {"type": "function", "name": "weigh", "strict": True, "parameters": PARAMETERS}


class Answer(pydantic.BaseModel):
    """What the scripted model answers where JSON is wanted."""

    answer: int


def chat(client: openai.OpenAI) -> dict[str, Any]:
    """Whole, streamed by the client's own helper, of an image, parsed, with a tool; and a text's completion."""
    whole = client.chat.completions.create(model="auto", messages=ASK)
    with client.chat.completions.stream(model="auto", messages=ASK) as stream:
        streamed = stream.get_final_completion()
    parsed: Any = client.chat.completions.parse(model="json", messages=ASK, response_format=Answer)
    called: Any = client.chat.completions.create(model="tools", messages=ASK, tools=[CHAT_TOOL])
    shown = client.chat.completions.create(model="auto", messages=SHOW)
    return {
        "chat_image": shown.choices[0].message.content,
        "completions": client.completions.create(model="auto", prompt="hi").choices[0].text,
        "chat": whole.choices[0].message.content,
        "chat_streamed": streamed.choices[0].message.content,
        "chat_parsed": parsed.choices[0].message.parsed.answer,
        "chat_tool": called.choices[0].message.tool_calls[0].function.arguments,
    }


def responses(client: openai.OpenAI) -> dict[str, Any]:
    """Whole, streamed by the client's own helper, parsed, with a tool, going on from one before."""
    whole = client.responses.create(model="auto", input="hi")
    with client.responses.stream(model="auto", input="hi") as stream:
        streamed = stream.get_final_response()
    parsed: Any = client.responses.parse(model="json", input="hi", text_format=Answer)
    called: Any = client.responses.create(model="tools", input="hi", tools=[RESPONSES_TOOL])
    on = client.responses.create(model="auto", input="on", previous_response_id=whole.id)
    return {
        "responses": whole.output_text,
        "responses_streamed": streamed.output_text,
        "responses_parsed": parsed.output_parsed.answer,
        "responses_tool": called.output[0].arguments,
        "responses_on": len(client.responses.input_items.list(on.id).data),
    }


def conversation(client: openai.OpenAI) -> dict[str, Any]:
    """What a response in a conversation added to it."""
    made = client.conversations.create()
    client.responses.create(model="auto", input="one", conversation=made.id)
    return {"conversation": [item.type for item in client.conversations.items.list(made.id).data]}


def background(client: openai.OpenAI) -> dict[str, Any]:
    """A response that is polled until it is there."""
    queued = client.responses.create(model="auto", input="hi", background=True)
    while queued.status in {"queued", "in_progress"}:
        time.sleep(0.1)
        queued = client.responses.retrieve(queued.id)
    return {"background": queued.output_text}


def azure() -> dict[str, Any]:
    """The model in the path, the key in `api-key`."""
    client = openai.AzureOpenAI(azure_endpoint=URL, api_key=KEY, api_version="2024-10-21")
    return {"azure": client.chat.completions.create(model="auto", messages=ASK).choices[0].message.content}


def main() -> None:
    """Prints what came."""
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
    models = {"models": {"auto", "plain"} <= {each.id for each in client.models.list()}}
    print(json.dumps(models | chat(client) | responses(client) | conversation(client) | background(client) | azure()))


main()
