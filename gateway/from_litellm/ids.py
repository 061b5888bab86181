"""Ids and names of LiteLLM's that ours may be: as they are where they can be, else in a form that is always the same."""

import re
from hashlib import blake2b
from typing import Final

from accounts.errors import BadName
from accounts.store import checked_name
from accounts.tables import ID_CHARS

_ID: Final = re.compile(rf"[a-z0-9_-]{{1,{ID_CHARS}}}", re.ASCII)
_DIGEST_BYTES: Final = 4


def id_of(theirs: str, beginning: str = "") -> str:
    """Return an id of ours for one of LiteLLM's."""
    whole = f"{beginning}{theirs}"
    if _ID.fullmatch(whole):
        return whole
    digest = blake2b(theirs.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    slug = re.sub(r"[^a-z0-9_-]+", "-", whole.lower()).strip("-")[: ID_CHARS - len(digest) - 1]
    return f"{slug}-{digest}" if slug else digest


def name_of(*candidates: object) -> str:
    """Return the first of these that can be a name here; `imported` for none."""
    for candidate in candidates:
        text = " ".join(str(candidate or "").split())[:200]
        try:
            return checked_name(text)
        except BadName:
            continue
    return "imported"
