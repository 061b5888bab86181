"""Mistral's client: the list of models, chat, streams and tools."""

import json
import os
from typing import Any

try:
    from mistralai.client import Mistral
except ImportError:  # Where versions before the second had it.
    from mistralai import Mistral

ASK: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weigh", "parameters": {"type": "object", "properties": {"kg": {"type": "integer"}}}},
}


def main() -> None:
    """Prints what came."""
    client = Mistral(server_url=os.environ["WEIGHBRIDGE_URL"], api_key=os.environ["WEIGHBRIDGE_KEY"])
    names = {each.id for each in client.models.list().data}
    whole: Any = client.chat.complete(model="auto", messages=ASK)
    streamed = [event.data.choices for event in client.chat.stream(model="auto", messages=ASK)]
    called: Any = client.chat.complete(model="tools", messages=ASK, tools=[TOOL])
    seen = {
        "models": {"auto", "plain"} <= names,
        "chat": whole.choices[0].message.content,
        "chat_streamed": "".join(choices[0].delta.content or "" for choices in streamed if choices),
        "chat_tool": called.choices[0].message.tool_calls[0].function.arguments,
    }
    print(json.dumps(seen))


main()
