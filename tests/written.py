"""What figures for people must not look like, wherever they stand: pages, tables of commands, sentences and mails.

A minus is a hyphen before the currency (`-$5.00`), and a blank stands before the sign of percent (`12.5 %`): `cost.shown`.
"""

import re
from typing import Final

OTHER_WAYS: Final = re.compile(r"(?<![%\w.])[\d.,]*\d%(?![0-9A-Fa-f]{2})|\$[-\u2212]\d|\u2212\$?\d")
_TYPED: Final = ("0.5%", "95%", "100%)")
"""Shares as people type them into an option or field, in its help."""
_HIDDEN: Final = re.compile(r"<(style|script|svg|code|pre)\b.*?</\1>|<[^>]*>", re.DOTALL)


def other_ways(text: str) -> list[str]:
    """Figures of a text that are written in another way than all others, each with what stands around it."""
    return [
        text[max(0, each.start() - 30) : each.end() + 10].replace("\n", " ")
        for each in OTHER_WAYS.finditer(text)
        if each[0] not in _TYPED
    ]


def other_ways_of_html(html: str) -> list[str]:
    """The same of a page's or mail's text."""
    return other_ways(_HIDDEN.sub(" ", html))
