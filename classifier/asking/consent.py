"""Consent: the part of the assistant's proposal that a short message accepts."""
# ruff: noqa: RUF001 - signs of other languages

import re
from typing import Final

from classifier.asking import vocabulary as words

PROPOSAL_CHARS: Final = 4_000

_CONSENT: Final = re.compile(words.CONSENT, re.IGNORECASE)

_BETWEEN: Final = r"[\s,.!;:…，。！、-]"

# Each word is atomic, so that no text takes longer than its length.
_PRAISING: Final = re.compile(
    rf"(?>(?:{words.THANKS}|{words.PRAISE})(?:\b|(?<=[\u4e00-\u9fff])){_BETWEEN}*)+", re.IGNORECASE
)

_ASSENTING: Final = re.compile(
    rf"(?>(?:{words.PLAIN_ASSENT}|{words.PRAISE})(?:\b|(?<=[\u4e00-\u9fff])){_BETWEEN}*)+", re.IGNORECASE
)

_DIRECT: Final = re.compile(words.DIRECT, re.IGNORECASE)

_PROPOSING: Final = re.compile(words.PROPOSING, re.IGNORECASE)

_SENTENCES: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")

_WHOLE: Final = re.compile(
    r"\b(?:all|everything|plan|steps?|alles|todo|tout|migration)\b|全部|都|方案|计划", re.IGNORECASE
)

_OPTION: Final = re.compile(
    r"(?:option|choice|variant|number|no\.?|plan|variante|opción|opcion|nummer|numéro|方案|选项|第|the|la|el|le|die)?\s*#?"
    r"([1-9]|[a-e]\b|一|二|三|四|one\b|two\b|three\b|first\b|second\b|third\b|fourth\b|last\b|primera?\b|segunda?\b|premi[eè]re?\b|deuxième\b|erste[nrs]?\b|zweite[nrs]?\b|dritte[nrs]?\b)",
    re.IGNORECASE,
)


def _declined(ordinal: str) -> tuple[str, ...]:
    return ordinal, *(f"{ordinal}{end}" for end in "nrs")


_ORDINALS: Final = {
    **dict.fromkeys(("one", "first", "一", "primera", "primero", "premier", "première", *_declined("erste")), "1"),
    **dict.fromkeys(("two", "second", "二", "segunda", "segundo", "deuxième", *_declined("zweite")), "2"),
    **dict.fromkeys(("three", "third", "三", *_declined("dritte")), "3"),
    **dict.fromkeys(("fourth", "四"), "4"),
}

_LISTED: Final = re.compile(
    r"(?:^|\n|(?<=[.:;,]\s)|(?<=\s)(?=\())[^\n\w]*(?:option|plan|variant|variante|opción|方案)?\s*\(?([1-9]|[a-e])\s?[.):：-]\)?\s",
    re.IGNORECASE,
)

_THANKS_FIRST: Final = re.compile(
    r"(?:many )?thank|thx|ty\b|danke|vielen dank|gracias|muchas|merci|谢|多谢", re.IGNORECASE
)

_CHOOSING: Final = re.compile(
    rf"(?:{words.CHOOSING}){_BETWEEN}*+(?P<part>(?:the |la |el |le |den |die |das |nur )?(?:step|option|point|part|schritt|paso|étape|opción|variante|第)?\s*#?(?:[1-9]|[a-e]|first|second|third|last|one|two"
    rf"|erste[nrs]?|zweite[nrs]?|dritte[nrs]?|primer[ao]?|segund[ao]|premi[eè]re?|deuxième|[一二三四])"
    rf"(?: (?:step|one|option|point|part|schritt|paso|étape))?[个步项]?)(?:[\s,]+(?:please|bitte|por favor|s'il (?:te|vous) plaît|for now|only|only please))?[\s.!。]*",
    re.IGNORECASE,
)
"""A refusal or an assent that names one part of a proposal."""

_MOST_TERMS: Final = 6

_OWN_TERMS: Final = re.compile(
    r"[?？]|\b(?:not|no|but|don't|nothing|none|never|nein|nicht|aber|kein|lieber|pero|non|pas|mais|rien|instead|already|later)\b|不|但",
    re.IGNORECASE,
)
"""Words by which somebody refuses, or asks for something of his own."""

_OR: Final = re.compile(r",?\s+(?:or|oder|ou)\s+|,\s+o\s+|还是|或者", re.IGNORECASE)

LONG_PROPOSAL: Final = 1_200


def accepted_proposal(text: str, proposal: str) -> str:
    """Return the option that a message names, or the proposal that it accepts; an empty text where it is no consent."""
    said = text.strip()
    if _PRAISING.fullmatch(said):
        return ""
    offered = proposal[-PROPOSAL_CHARS:].strip()
    chosen = _CHOOSING.fullmatch(said)
    # Terms of one's own that name a part of what was proposed.
    part = _chosen_option(chosen["part"], offered) if chosen else ""
    if part:
        return part
    match = _CONSENT.match(said)
    if match is None or not match.end():
        return ""
    more = said[match.end() :].strip()
    if more and (len(more.split()) > _MOST_TERMS or _OWN_TERMS.search(said) or _THANKS_FIRST.match(said)):
        return ""
    asks = "?" in offered[-400:] or "？" in offered[-400:]
    if not (asks or _DIRECT.search(said)) and (not _PROPOSING.search(offered) or _ASSENTING.fullmatch(said)):
        return ""
    accepted = _chosen_option(said, offered) or _offered(said, offered)
    return f"{accepted}\n{text.strip()}" if more else accepted


def _chosen_option(said: str, offered: str) -> str:
    match = _OPTION.search(said)
    if match is None:
        return ""
    name = _ORDINALS.get(match[1].lower(), match[1].lower())
    listed = list(_LISTED.finditer(offered))
    for at, each in enumerate(listed):
        if each[1].lower() == name or (match[1].lower() == "last" and at + 1 == len(listed)):
            end = listed[at + 1].start() if at + 1 < len(listed) else offered.find("\n\n", each.end())
            chosen = offered[each.end() : end if end > 0 else len(offered)].strip()
            last = chosen.rpartition("\n")[2]
            return chosen[: -len(last)].strip() if last != chosen and last.endswith(("?", "？")) else chosen
    # Alternatives without numbers: "I could do this, or do that".
    sentence = next((each for each in reversed(_SENTENCES.split(offered)) if len(_OR.split(each)) > 1), "")
    parts = _OR.split(sentence)
    if not listed and len(parts) > 1 and (name.isdigit() or match[1].lower() == "last"):
        number = len(parts) if match[1].lower() == "last" else int(name)
        return parts[number - 1].strip() if number <= len(parts) else ""
    return ""


def _offered(said: str, offered: str) -> str:
    last = offered.rpartition("\n\n")[2]
    offering = [
        each for each in _SENTENCES.split(last) if _PROPOSING.search(each) or each.rstrip().endswith(("?", "？"))
    ]
    ask = " ".join(offering) or last
    # Of a long answer that ends with an offer it is the offer that is accepted; a plan is accepted as a whole.
    return offered if len(offered) <= LONG_PROPOSAL or _WHOLE.search(f"{said} {ask}") else ask
