"""The table of tools: name, what a model is told of it, its arguments, its function, and the right that it needs.

A new tool is a row here and a function in `lookups`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from accounts.access import Right, rights
from accounts.errors import AccountsError
from api.ask import lookups
from api.ask.asker import Asker, OutOfScope
from api.ask.found import Found
from proxy.errors import Refused
from settings.decoding import DECODE_ERRORS

_log: Final = logging.getLogger("weighbridge.ask")


class Tool(NamedTuple):
    """One read-only tool."""

    name: str
    about: str
    takes: type[msgspec.Struct]
    look: Callable[[lookups.LookUp, Any], Awaitable[Found]]
    doing: str
    """What people read while it runs."""
    right: Right | None = None
    """The right in the organisation that the asker must have; None where the scope is enough."""


TOOLS: Final = (
    Tool(
        "teams",
        "List the teams that may be read, with their ids.",
        lookups.Nothing,
        lookups.teams,
        "Looking at the teams",
    ),
    Tool(
        "usage",
        "Cost, requests and tokens of a period, grouped. Use it for questions of how much, who and which.",
        lookups.UsageAsked,
        lookups.usage,
        "Adding up usage",
    ),
    Tool(
        "movers",
        "What changed most against the time before, up or down, by requests, tokens, price and postings, and since when. "
        "Use it for questions of why something rose or fell.",
        lookups.MoversAsked,
        lookups.movers,
        "Looking for what changed",
    ),
    Tool(
        "requests",
        "Single requests, newest, dearest, slowest or longest first, with status, cost and latency.",
        lookups.RequestsAsked,
        lookups.requests,
        "Looking through requests",
    ),
    Tool(
        "search",
        "Find single requests by words: an id, an end user, a key, a model, a status, a cost or a time. Newest first.",
        lookups.SearchAsked,
        lookups.search,
        "Searching requests",
    ),
    Tool(
        "refusals",
        "How many requests were refused before a model was asked, by reason.",
        lookups.Days,
        lookups.refusals,
        "Counting refused requests",
    ),
    Tool(
        "budgets",
        "Budgets with what is spent and left, the most used first.",
        lookups.OfTeam,
        lookups.budgets,
        "Looking at budgets",
    ),
    Tool("prices", "What models cost now.", lookups.PricesAsked, lookups.prices, "Looking up prices"),
    Tool(
        "savings",
        "What was saved against the baseline model and other comparators.",
        lookups.Days,
        lookups.savings,
        "Working out savings",
    ),
    Tool(
        "incidents",
        "What is wrong with models, pools and the gateway now.",
        lookups.Nothing,
        lookups.incidents,
        "Looking for incidents",
        "operations.read",
    ),
    Tool(
        "calculate",
        "Do arithmetic with figures of earlier results, given by their references. Use it for every number that no result has.",
        lookups.CalculateAsked,
        lookups.calculate,
        "Calculating",
    ),
)


class ToolRefused(Exception):
    """A call of a tool that cannot be answered; the message goes to the model."""


def tools_for(asker: Asker) -> Mapping[str, Tool]:
    """Return the tools that an asker has, by name."""
    has = rights(asker.principal)
    return {tool.name: tool for tool in TOOLS if tool.right is None or tool.right in has}


@cache
def schema_of(tool: Tool) -> dict[str, Any]:
    """Return a tool as `tools` of a chat request has it, with a schema that needs no references."""
    (_, found) = msgspec.json.schema_components([tool.takes])
    schema = found[tool.takes.__name__]
    parameters = {"type": "object", "properties": schema["properties"], "additionalProperties": False}
    if schema.get("required"):
        parameters["required"] = schema["required"]
    return {"type": "function", "function": {"name": tool.name, "description": tool.about, "parameters": parameters}}


def parsed(tool: Tool, arguments: str) -> msgspec.Struct:
    """Return a call's arguments. What is null or empty is left out, as models send that for nothing. Raises ToolRefused."""
    try:
        given = msgspec.json.decode(arguments or "{}")
    except DECODE_ERRORS as error:
        raise ToolRefused("The arguments are no JSON object.") from error
    if not isinstance(given, dict):
        raise ToolRefused("The arguments are no JSON object.")
    meant = {name: value for name, value in given.items() if value not in (None, "", [])}
    try:
        return msgspec.convert(meant, tool.takes, strict=False)
    except DECODE_ERRORS as error:
        raise ToolRefused(f"{str(error)[:300]}.") from error


async def looked_up(tool: Tool, look: lookups.LookUp, asked: msgspec.Struct) -> Found:
    """Run a tool. Raises ToolRefused where there is no answer, or the asker may not read it."""
    try:
        return await tool.look(look, asked)
    except (OutOfScope, lookups.BadLookUp) as error:
        raise ToolRefused(str(error)) from error
    except Refused as error:
        raise ToolRefused(error.message) from error
    except (AccountsError, SQLAlchemyError, OSError, TimeoutError) as error:
        # Only the type: a driver's message repeats the statement with its values.
        _log.warning("the look-up %s failed: %s", tool.name, type(error).__name__)
        raise ToolRefused("This could not be looked up now.") from error
