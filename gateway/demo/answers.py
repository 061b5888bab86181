"""What the sample's models answer: text that was written for each prompt of the made-up company."""

from typing import Any, Final

import msgspec

from gateway.demo.company import JUMP, NEIGHBOURS, TEAMS

UNKNOWN: Final = (
    "This answer is made up: no model runs behind the sample, only a stand-in that answers at the pace of one. "
    "Which model was chosen, why, and what it costs are the gateway's own work. "
    "`make serve` has two small models that really answer."
)
_ANSWERS: Final = {
    prompt.text: work.answer.replace("{}", word)
    for team in (*TEAMS, JUMP, *NEIGHBOURS)
    for work in team.work
    for prompt, word in zip(work.prompts(), work.words, strict=True)
}


class _Chat(msgspec.Struct):
    messages: list[dict[str, Any]] = []


def answer_to(body: bytes) -> str:
    """Return the answer to a chat's last message."""
    messages = msgspec.json.decode(body, type=_Chat).messages
    asked = messages[-1].get("content") if messages else None
    return _ANSWERS.get(asked, UNKNOWN) if isinstance(asked, str) else UNKNOWN
