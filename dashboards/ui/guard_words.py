"""What the guard looks for and does, in words."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from dashboards.ui.formats import number, plural
from guard.guard_config import GuardRule, RuleKind, kinds_of
from guard.ruleset import Action, Finding

DONE: Final[Mapping[Action, tuple[str, str]]] = {
    "block": ("Refused", "bad"),
    "own": ("Own engines only", "info"),
    "mask": ("Masked", "good"),
    "flag": ("Told", "quiet"),
    "open": ("Let through unjudged", "warn"),
    "unseen": ("Not looked at", "warn"),
}
"""What was done: words and tone."""
SIDES: Final = {"input": "Request", "output": "Answer"}
RULE_KINDS: Final[Mapping[RuleKind, str]] = {
    "pii": "Personal data",
    "secret": "Keys and passwords",
    "words": "Words of your own",
    "pattern": "A pattern of your own",
    "injection": "Attempts to overrule instructions",
    "http": "What a service finds",
    "plugin": "What a plug-in finds",
}
ADDED_KINDS: Final = tuple(kind for kind in RULE_KINDS if kind not in {"http", "plugin"})
"""Those that organisations and teams may add."""
INPUTS: Final = {
    "block": "Refuse the request",
    "own": "Ask own engines only",
    "mask": "Put a mask in its place",
    "flag": "Tell, and change nothing",
    "off": "Do not look",
}
OUTPUTS: Final = {name: words for name, words in INPUTS.items() if name != "own"} | {"block": "Refuse the answer"}
_UNSEEN: Final = {
    "image": "Pictures",
    "audio": "Sound",
    "video": "Video",
    "file": "Files",
    "tokens": "Texts sent as tokens",
}
_MOST_NAMED: Final = 4


@cache
def kind_titles() -> Mapping[str, str]:
    """Return the title of each kind that is known, by its name."""
    # Patterns take megabytes, which only those have a use for who look at these pages.
    from guard.kinds import KINDS  # noqa: PLC0415

    return {name: each.title for name, each in KINDS.items()}


def found_words(name: str, action: str) -> str:
    """Return what was found: the kind's title, or the name of a rule of somebody's own."""
    if action == "unseen":
        return _UNSEEN.get(name, name)
    return kind_titles().get(name, name) or "Others"


def done_words(action: str) -> tuple[str, str]:
    """Return what was done as words and tone."""
    return next((words for known, words in DONE.items() if known == action), (action, "quiet"))


def told(findings: Sequence[Finding]) -> str:
    """Return what was found in one request, and done, as a sentence's part."""
    return "; ".join(
        f"{found_words(each.name, each.action)}: {done_words(each.action)[0].lower()}"
        f"{' in the answer' if each.side == 'output' else ''}, {number(each.count)}"
        for each in findings
    )


def looks_for(rule: GuardRule) -> str:
    """Return what a rule looks for. Of words only how many: a list may be a secret itself."""
    if rule.words is not None:
        return plural(len(rule.words), "word or phrase", "words and phrases")
    if rule.kind not in {"pii", "secret"}:
        return RULE_KINDS[rule.kind]
    if rule.entities is None:
        return f"All {len(kinds_of(rule.kind))} kinds of keys and passwords"
    titles = [kind_titles().get(each, each) for each in rule.entities]
    more = len(titles) - _MOST_NAMED
    return ", ".join(titles[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
