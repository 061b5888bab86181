"""Anthropic's tools and tool choice in chat's shape. Pure."""

from typing import Any, Final

from providers.tool_names import fitting_name
from proxy.parse.wires.reading import an_object, objects, text, wrong

_MARK: Final = "cache_control"


def chat_tools(tools: Any, *, marked: bool) -> list[dict[str, Any]]:
    """Return the tools that have a schema as function tools. Raises BadRequest."""
    found = []
    for index, tool in enumerate(objects(tools, "tools")):
        where = f"tools.{index}"
        name = text(tool.get("name"), f"{where}.name")
        function: dict[str, Any] = {
            "name": name if marked else fitting_name(name),
            "parameters": an_object(tool.get("input_schema"), f"{where}.input_schema"),
        }
        if tool.get("description") is not None:
            function["description"] = text(tool["description"], f"{where}.description")
        if tool.get("strict") is not None:
            function["strict"] = bool(tool["strict"])
        made: dict[str, Any] = {"type": "function", "function": function}
        if marked and tool.get(_MARK) is not None:
            made[_MARK] = tool[_MARK]
        found.append(made)
    return found


def given_names(tools: Any) -> dict[str, str]:
    """Return the given names of tools whose names were cut, by the names they were cut to. `tools` was read before."""
    names = [tool["name"] for tool in tools or ()]
    return {fitting_name(name): name for name in names if fitting_name(name) != name}


def chat_tool_choice(choice: Any) -> dict[str, Any]:
    """Return the fields `tool_choice` and `parallel_tool_calls`, those that the caller set. Raises BadRequest."""
    choice = an_object(choice, "tool_choice")
    fields: dict[str, Any] = {}
    match choice.get("type"):
        case "auto" | "none":
            fields["tool_choice"] = choice["type"]
        case "any":
            fields["tool_choice"] = "required"
        case "tool":
            name = text(choice.get("name"), "tool_choice.name")
            fields["tool_choice"] = {"type": "function", "function": {"name": fitting_name(name)}}
        case _:
            raise wrong("tool_choice.type", "`auto`, `any`, `tool` or `none`")
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields
