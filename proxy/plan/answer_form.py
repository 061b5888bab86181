"""The form in which a request promises its answer, if a program can tell that two answers of it say the same.

The form is decided from the request, before anything is asked, so there is one only where the request itself promises a
short or formal answer: requested JSON, a call that must be made, a letter of options, a number, a label. Answers that
may be long are not compared, however short they happen to be: no second model is asked for them, and they cost nothing.
"""

import re
from typing import Final, Literal

import msgspec

from classifier.prediction import Prompt
from providers.wire import ChatRequest

Form = Literal["choice", "number", "literal", "json", "call", "text"]

_READ_CHARS: Final = 2_000
"""The most characters that are read of each end of the last user message and of the system message."""
_SHORT_TOKENS: Final = 16
"""A bound of the caller's own that only a short text fits in."""
MAX_EXPECTED_TOKENS: Final = 60
"""The longest answer that is expected where words alone ask for a short one."""
_MAX_FIELD_BYTES: Final = 4_096

_OPTION = re.compile(r"^[ \t]*[(\[]?(?P<letter>[A-P])[)\].:]{1,2}[ \t]+\S", re.MULTILINE)
_CHOOSES = re.compile(
    r"\?|\b(?:answer|choose|select|pick|options?|choices?|letter|correct|which|following)\b", re.IGNORECASE
)
_LITERAL = re.compile(r"\[ANSWER\]|\bassert f\(")
_NUMBER = re.compile(
    r"\b(?:only|just|single|one) (?:an? |the )?(?:final )?(?:number|integer|numeric(?:al)? (?:value|answer))\b"
    r"|\b(?:answer|respond|reply|return|output) (?:with|as|in|is) (?:an? |the )?(?:single )?(?:number|integer|decimal)\b"
    r"|\bnumeric(?:al)? answer\b",
    re.IGNORECASE,
)
_FINAL = re.compile(r"\\boxed|####|\bfinal answer\b", re.IGNORECASE)
_SHORT = re.compile(
    r"\b(?:one|a single) word\b|\byes or no\b|\byes/no\b|\btrue or false\b|\btrue/false\b|\bnothing else\b"
    r"|\bno (?:explanation|other text|extra text)\b|\bwithout (?:any )?explanation\b"
    r"|\b(?:answer|respond|reply|return|output) (?:with )?(?:only|just)\b"
    r"|\b(?:only|just) (?:return|output|answer|respond|reply|the (?:label|category|class|name|word|value|answer|intent|language))\b",
    re.IGNORECASE,
)


class AskedForm(msgspec.Struct, frozen=True):
    """The form in which a request is answered; `letters` are those of the options."""

    kind: Form
    letters: str = ""


def asked_form(request: ChatRequest, prompt: Prompt, expected_tokens: int) -> AskedForm | None:
    """Return the form that the request promises its answer in; None where two answers could not be compared.
    `expected_tokens` is the predicted length of the answer: words such as "nothing else" are said of whole programs,
    too.
    """
    if request.operation != "chat" or request.n != 1 or request.as_written is not None:
        return None
    if "modalities" in request.fields or "audio" in request.fields:
        return None
    if request.tools and (choice := _tool_choice(request)) != "none":
        # Where a model may answer in prose, its answer cannot be counted on to be a call.
        return AskedForm("call") if choice == "required" else None
    return AskedForm("json") if request.json_mode else _form_of_text(request, prompt, expected_tokens)


def _form_of_text(request: ChatRequest, prompt: Prompt, expected_tokens: int) -> AskedForm | None:
    ask = _ends(prompt.text)
    letters = _options(ask)
    if letters and _CHOOSES.search(ask):
        return AskedForm("choice", letters)
    said = f"{ask}\n{_ends(prompt.system)}"
    if _LITERAL.search(said):
        return AskedForm("literal")
    if _NUMBER.search(said):
        return AskedForm("number")
    is_short = request.max_output_tokens is not None and request.max_output_tokens <= _SHORT_TOKENS
    if is_short or _FINAL.search(said) or (expected_tokens <= MAX_EXPECTED_TOKENS and _SHORT.search(said)):
        return AskedForm("text")
    return None


def _tool_choice(request: ChatRequest) -> Literal["none", "auto", "required"]:
    """Return `required` where a tool must be called, `none` where none may be, else `auto`."""
    raw = request.fields.get("tool_choice") or request.fields.get("function_call")
    if raw is None or len(memoryview(raw)) > _MAX_FIELD_BYTES:
        return "auto"
    choice = msgspec.json.decode(raw)
    if isinstance(choice, dict):
        # One tool that is named; a list of allowed ones says itself whether one must be called.
        inner = choice.get("allowed_tools")
        mode = inner.get("mode") if isinstance(inner, dict) else choice.get("mode", "required")
        return "required" if mode == "required" else "auto"
    return "none" if choice == "none" else "required" if choice in {"required", "any"} else "auto"


def _options(text: str) -> str:
    """Return the letters of the options that a text lists, one a line, from A on; empty for fewer than two."""
    letters = "".join(dict.fromkeys(found["letter"] for found in _OPTION.finditer(text)))
    return letters if len(letters) > 1 and "ABCDEFGHIJKLMNOP".startswith(letters) else ""


def _ends(text: str) -> str:
    return text if len(text) <= 2 * _READ_CHARS else f"{text[:_READ_CHARS]}\n{text[-_READ_CHARS:]}"
