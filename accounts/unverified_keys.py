"""Keys that a gateway cannot verify, as their peppers are not among its own."""

from collections.abc import Iterable, Mapping

from accounts.keys import Pepper


def unverified(keys_by_pepper: Mapping[str, int], known: Iterable[Pepper]) -> str | None:
    """Return a sentence about keys that none of these peppers verifies; None where there are none."""
    ids = {pepper.id for pepper in known}
    others = {pepper_id: count for pepper_id, count in keys_by_pepper.items() if pepper_id not in ids}
    if not others:
        return None
    whole = "none of the keys works" if len(others) == len(keys_by_pepper) else "some keys do not work"
    return (
        f"{whole}: {keys_made_under(others)}, and this gateway has the pepper {', '.join(sorted(ids))}. Give it the pepper that they were "
        "made under (accounts.peppers takes several), or revoke them"
    )


def keys_made_under(keys_by_pepper: Mapping[str, int]) -> str:
    """Return words for these keys and the ids of their peppers."""
    count = sum(keys_by_pepper.values())
    return f"{count} {'key' if count == 1 else 'keys'} made under the pepper {', '.join(sorted(keys_by_pepper))}"
