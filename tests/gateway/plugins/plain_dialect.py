"""A dialect that says nothing, for configurations that name one."""

from collections.abc import Mapping
from typing import Any

from weighbridge.plugins import Call, Outgoing


class PlainDialect:
    protocol = 1

    def request(self, body: Mapping[str, Any], call: Call) -> Outgoing:
        return Outgoing(path="plain", body=b"{}")

    def reader(self, call: Call) -> "PlainDialect":
        return self

    def whole(self, payload: bytes) -> Mapping[str, Any]:
        return {"choices": []}

    def event(self, payload: bytes) -> Mapping[str, Any] | None:
        return None
