"""The shapes of secrets in texts that people write: API keys, tokens, passwords in URLs, private keys."""

import re
from typing import Final

MASK: Final = "•••"
_SECRET_PATTERNS: Final = (
    # Our own keys keep their public part, so that the entry says which it was.
    (re.compile(r"\b(wb-[0-9a-z]{12})-[0-9A-Za-z]{8,}"), rf"\1-{MASK}"),
    (re.compile(r"\b(?:sk|xai|pk|rk)-[A-Za-z0-9_-]{12,}|\b(?:hf|gsk|ghp|glpat)[_-][A-Za-z0-9_-]{12,}"), MASK),
    (re.compile(r"\bAKIA[A-Z0-9]{12,}"), MASK),
    (re.compile(r"\b(bearer|basic)\s+[^\s,;]{8,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?"), MASK),
    (re.compile(r"(://[^\s/:@]{0,200}):[^\s/@]{1,400}@"), rf"\1:{MASK}@"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
)


def mask_text(text: str) -> str:
    """Return the text with everything of a secret's shape masked: API keys, tokens, passwords in URLs, private keys."""
    for shape, instead in _SECRET_PATTERNS:
        text = shape.sub(instead, text)
    return text
