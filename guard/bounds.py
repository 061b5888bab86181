"""How long people's own rules may be. Apart from the kinds, whose patterns take megabytes, so that who only reads rules has it for nothing."""

from typing import Final

MOST_PATTERN_CHARS: Final = 1_000
MOST_WORDS: Final = 1_000
MOST_WORD_CHARS: Final = 200
