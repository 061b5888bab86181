"""A real agent's loop through the running gateway: it stays, and when it struggles a better model takes over."""

from pathlib import Path
from typing import Any

from openai.types.chat import ChatCompletion

from tests.running_gateway import CHEAP_PRICES, model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_openai_client import client

TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


async def test_an_agent_that_repeats_itself_is_given_the_better_model(tmp_path: Path, upstream: Upstream) -> None:
    """The cheap model calls the same tool again and again; the fourth step is the dear one's, and so is the next turn."""
    models = [
        model("cheap", [upstream.deployment("tools")], capability=0.9, prices=CHEAP_PRICES),
        model("dear", [upstream.deployment("tools")]),
    ]
    messages: list[Any] = [{"role": "user", "content": "Who is on call?"}]
    seen = []
    async with running_gateway(tmp_path, models) as gateway, client(gateway) as caller:
        for _ in range(6):
            raw = await caller.chat.completions.with_raw_response.create(model="auto", messages=messages, tools=TOOLS)
            answer: ChatCompletion = raw.parse()
            names = ("target", "reason", "struggle")
            seen.append(tuple(raw.headers.get(f"x-weighbridge-{name}", "") for name in names))
            said = answer.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "Error: look_up is not reachable"}
                for call in said.tool_calls or ()
            ]
        messages.append({"role": "user", "content": "Try once more."})
        raw = await caller.chat.completions.with_raw_response.create(model="auto", messages=messages, tools=TOOLS)
        rows = await gateway.rows("entry = 'settle'")
    cheap, dear = ("cheap", "cheapest-capable", ""), ("dear", "struggle", "repeated-call")
    assert seen == [cheap, cheap, cheap, dear, dear, dear]
    assert (raw.headers["x-weighbridge-target"], raw.headers["x-weighbridge-reason"]) == ("dear", "struggle")
    assert [row["reason"] for row in rows] == ["cheapest-capable"] * 3 + ["struggle"] * 4
