"""LlamaIndex's model for OpenAI: as it is by default, which chats, and one of the names that it completes text with."""

import json

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAI


def main() -> None:
    """Prints what came."""
    # Without a limit it counts tokens first, with a table that it would have to download.
    default, completing = OpenAI(), OpenAI(model="gpt-3.5-turbo-instruct", max_tokens=50)
    seen = {
        "complete": default.complete("hi").text,
        "complete_streamed": "".join(piece.delta or "" for piece in default.stream_complete("hi")),
        "chat": default.chat([ChatMessage(role="user", content="hi")]).message.content,
        "completions": completing.complete("hi").text,
    }
    print(json.dumps(seen))


main()
