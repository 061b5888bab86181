"""OpenAI's Agents SDK as it is by default, which calls responses: whole, streamed, with a tool and a schema."""

import asyncio
import json
from typing import Any

import pydantic
from agents import Agent, Runner, function_tool, set_tracing_disabled


class Answer(pydantic.BaseModel):
    """What the scripted model answers where JSON is wanted."""

    answer: int


@function_tool
def weigh(kg: int) -> str:
    """Weigh something."""
    return f"{kg} kg"


async def main() -> None:
    """Prints what came."""
    set_tracing_disabled(True)
    plain: Any = Agent(name="plain", model="auto")
    whole = await Runner.run(plain, "hi")
    streamed = Runner.run_streamed(plain, "hi")
    events = [event.type async for event in streamed.stream_events()]
    tools: Any = Agent(name="tools", model="tools", tools=[weigh], tool_use_behavior="stop_on_first_tool")
    parsed = await Runner.run(Agent(name="json", model="json", output_type=Answer), "hi")
    seen = {
        "run": whole.final_output,
        "run_streamed": streamed.final_output if "raw_response_event" in events else None,
        "run_tool": (await Runner.run(tools, "hi")).final_output,
        "run_parsed": parsed.final_output.answer,
    }
    print(json.dumps(seen))


asyncio.run(main())
