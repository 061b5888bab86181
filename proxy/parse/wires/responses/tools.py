"""The tools of a response in chat's shape, and back. Pure.

Chat has functions alone. A custom tool, which takes free text, becomes a function of one text; a namespace's tools
become functions whose names begin with it. The model's calls are written with the names that the caller gave.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from providers.provider_tools import tool_name
from providers.tool_names import fitting_name, with_checksum
from proxy.parse.wires.reading import an_object, objects, text, unsupported, wrong

INPUT: Final = "input"
"""The one argument of the function that a custom tool becomes."""
_CUSTOM_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
_FUNCTION: Final[Mapping[str, Any]] = {
    "type": "function",
    "name": "",
    "description": None,
    "parameters": None,
    "strict": None,
}
"""What is told of a function, in the order that is published."""
_CHATS: Final = ("function", "custom", "namespace")
_CHOICES: Final = ("auto", "none", "required")


class Tool(msgspec.Struct, frozen=True):
    """A tool as its caller named it."""

    name: str
    custom: bool = False
    namespace: str | None = None


class Toolbox(msgspec.Struct, frozen=True):
    """Chat's functions, and the caller's tool by each of their names."""

    functions: list[dict[str, Any]]
    tools: dict[str, Tool]
    renamed: dict[tuple[str, str | None], str] = {}
    """The functions' names of tools, by name and namespace, that would else have the name of another."""

    def function_of(self, name: str, namespace: str | None) -> str:
        """Return the name of the function that stands for a tool."""
        return self.renamed.get((name, namespace)) or chat_name(name, namespace)

    def called(self, name: str) -> Tool:
        """Return the tool that a model called; an unknown one goes by the name that the model made up."""
        return self.tools.get(name) or Tool(name)


NO_TOOLS: Final = Toolbox([], {})


def tools_run_by_providers(tools: Any) -> dict[str, str]:
    """Return the tools that only a provider can run, by name and each with its place. Raises BadRequest."""
    found: dict[str, str] = {}
    for index, tool in enumerate(objects(tools, "tools")):
        kind = tool.get("type")
        if kind not in _CHATS:
            found.setdefault(tool_name(text(kind, f"tools.{index}.type")[:64]), f"tools.{index}.type")
    return found


def toolbox_of(tools: Any) -> Toolbox:
    """Return the tools that chat can express. Raises BadRequest."""
    box = Toolbox([], {}, {})
    for index, tool in enumerate(objects(tools, "tools")):
        where = f"tools.{index}"
        if tool.get("type") not in _CHATS:
            continue
        if tool.get("type") != "namespace":
            _add(box, tool, where)
            continue
        namespace = text(tool.get("name"), f"{where}.name")
        for inner, each in enumerate(objects(tool.get("tools"), f"{where}.tools")):
            _add(box, each, f"{where}.tools.{inner}", namespace)
    return box


def tool_as_told(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool as a response repeats it: with all that is told of its kind."""
    match tool.get("type"):
        case "function":
            return {**_FUNCTION, **tool}
        case "namespace":
            return {**tool, "tools": [tool_as_told(each) for each in tool["tools"]]}
        case _:
            return tool


def choice_as_told(choice: Any) -> Any:
    """Return a tool choice as a response repeats it."""
    return {"mode": "auto", **choice} if isinstance(choice, dict) and choice.get("type") == "allowed_tools" else choice


def chat_name(name: str, namespace: str | None) -> str:
    """Return the name of the function."""
    return fitting_name(name if namespace is None else f"{namespace}__{name}")


def chat_tool_choice(choice: Any, box: Toolbox) -> tuple[Any, Toolbox]:
    """Return chat's tool choice, and the toolbox with those tools alone that the choice allows. Raises BadRequest."""
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise wrong("tool_choice", "`auto`, `none`, `required` or an object")
        return choice, box
    choice = an_object(choice, "tool_choice")
    match choice.get("type"):
        case "function" | "custom":
            return _named(choice, "tool_choice", box), box
        case "allowed_tools":
            mode = choice.get("mode", "auto")
            if mode not in _CHOICES:
                raise wrong("tool_choice.mode", "`auto` or `required`")
            allowed = {
                _named(each, f"tool_choice.tools.{index}", box)["function"]["name"]
                for index, each in enumerate(objects(choice.get("tools"), "tool_choice.tools"))
            }
            functions = [each for each in box.functions if each["function"]["name"] in allowed]
            return mode, Toolbox(functions, box.tools, box.renamed)
        case kind:
            raise unsupported("tool_choice.type", _elsewhere(kind))


def _named(choice: Mapping[str, Any], where: str, box: Toolbox) -> dict[str, Any]:
    name = box.function_of(text(choice.get("name"), f"{where}.name"), choice.get("namespace"))
    return {"type": "function", "function": {"name": name}}


def _add(box: Toolbox, tool: Mapping[str, Any], where: str, namespace: str | None = None) -> None:
    kind = tool.get("type")
    if kind not in ("function", "custom"):
        raise unsupported(f"{where}.type", _elsewhere(kind))
    name = text(tool.get("name"), f"{where}.name")
    function: dict[str, Any] = {"name": chat_name(name, namespace)}
    if function["name"] in box.tools:
        function["name"] = with_checksum(function["name"], f"{namespace}\0{name}")
        box.renamed[name, namespace] = function["name"]
    description = _description(tool, where)
    if description:
        function["description"] = description
    if kind == "custom":
        function["parameters"] = dict(_CUSTOM_PARAMETERS)
    elif tool.get("parameters") is not None:
        function["parameters"] = an_object(tool["parameters"], f"{where}.parameters")
    if kind == "function" and tool.get("strict") is not None:
        function["strict"] = bool(tool["strict"])
    box.functions.append({"type": "function", "function": function})
    box.tools[function["name"]] = Tool(name, kind == "custom", namespace)


def _description(tool: Mapping[str, Any], where: str) -> str:
    said = [] if tool.get("description") is None else [text(tool["description"], f"{where}.description")]
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        # Chat's functions are bound to no grammar, so the model can only be told of it.
        said.append(f"`{INPUT}` must follow this {form.get('syntax')} grammar:\n{form.get('definition')}")
    return "\n\n".join(said)


def _elsewhere(kind: Any) -> str:
    return (
        f"The tool {str(kind)[:64]!r} is none that can be chosen, or stand in a namespace, here: name one of the types "
        "`function` or `custom`."
    )
