"""Anthropic's client: messages, its stream helper, tools and counts."""

import json
import os
from typing import Any

import anthropic

ASK: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"name": "weigh", "input_schema": {"type": "object", "properties": {"kg": {"type": "integer"}}}}


def main() -> None:
    """Prints what came."""
    client = anthropic.Anthropic(base_url=os.environ["WEIGHBRIDGE_URL"], api_key=os.environ["WEIGHBRIDGE_KEY"])
    whole: Any = client.messages.create(model="auto", max_tokens=50, messages=ASK)
    with client.messages.stream(model="auto", max_tokens=50, messages=ASK) as stream:
        streamed = "".join(stream.text_stream)
        usage = stream.get_final_message().usage.output_tokens
    called: Any = client.messages.create(model="tools", max_tokens=50, messages=ASK, tools=[TOOL])
    counted = client.messages.count_tokens(model="auto", messages=ASK)
    seen = {
        "messages": whole.content[0].text,
        "messages_streamed": streamed,
        "messages_usage": usage,
        "messages_tool": called.content[0].input,
        "counted": counted.input_tokens > 0,
    }
    print(json.dumps(seen))


main()
