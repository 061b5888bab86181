"""A dialect: text-generation-inference's own API, for servers that have no /v1/chat/completions."""

import json
from collections.abc import Mapping
from typing import Any

from weighbridge.plugins import Call, Outgoing

_ENDS = {"length": "length"}


class TgiGenerate:
    protocol = 1

    def request(self, body: Mapping[str, Any], call: Call) -> Outgoing:
        turns = [f"<|{each['role']}|>\n{each['content']}" for each in body["messages"]]
        most = body.get("max_completion_tokens") or body.get("max_tokens") or 256
        given = {"max_new_tokens": most, "details": True, "temperature": body.get("temperature") or None}
        written = {"inputs": "\n".join([*turns, "<|assistant|>\n"]), "parameters": given}
        return Outgoing(path="generate_stream" if call.stream else "generate", body=json.dumps(written).encode())

    def reader(self, call: Call) -> "Reader":
        return Reader(call)


class Reader:
    def __init__(self, call: Call) -> None:
        self._base = {"id": f"chatcmpl-{call.request_id}", "model": call.model, "created": 0}

    def whole(self, payload: bytes) -> Mapping[str, Any]:
        told = json.loads(payload)
        message = {"role": "assistant", "content": told["generated_text"]}
        choice = {"index": 0, "message": message, "finish_reason": _end(told["details"])}
        return {**self._base, "object": "chat.completion", "choices": [choice], "usage": _usage(told["details"])}

    def event(self, payload: bytes) -> Mapping[str, Any] | None:
        told = json.loads(payload)
        details = told.get("details")
        piece = "" if told["token"].get("special") else told["token"]["text"]
        choice = {"index": 0, "delta": {"content": piece}, "finish_reason": details and _end(details)}
        chunk = {**self._base, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": _usage(details)} if details else chunk


def _end(details: Mapping[str, Any]) -> str:
    return _ENDS.get(details["finish_reason"], "stop")


def _usage(details: Mapping[str, Any]) -> Mapping[str, int]:
    read, written = len(details.get("prefill") or ()) or details.get("input_length", 0), details["generated_tokens"]
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
