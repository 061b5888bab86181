"""Secrets on their way over: what is written refers to them, and literal ones are moved into variables of the environment."""

import re
from collections.abc import Iterable
from typing import Final

from gateway.from_litellm.source import Variables, default_in, name_in, steers
from gateway.from_litellm.told import Account, Item

_NOT_A_KEY: Final = re.compile(
    r"|none|null|empty|dummy|fake(-?key)?|sk-?(1234|fake|dummy|none|xxx+|no-?key.*|local.*)?|x+|not[-_ ]?(needed|used|required|a[-_ ]?real[-_ ]?key)|"
    r"no[-_]?key(-required)?|any(thing)?|ollama|lm-?studio|vllm|placeholder|unused|test|local|na|n/a|-|bearer",
    re.IGNORECASE,
)
"""What people write where a key is asked for and none is needed."""
_FILE: Final = re.compile(r"(/|\./|~)[^\n{}]{1,400}\Z")


class Secrets:
    """The references of a configuration that is being written, and the literals that they stand for now."""

    def __init__(self, account: Account, variables: Variables) -> None:
        self._account = account
        self._variables = variables
        self.moved: dict[str, str] = {}
        """Literal secrets by the variable that each has to be set as. Never print the values."""
        self.referred: set[str] = set()
        self._taken: frozenset[str] = frozenset()

    def keep_free(self, names: Iterable[str]) -> None:
        """Have no literal take one of these variables: something refers to what they hold already."""
        self._taken |= frozenset(names)

    def reference(self, item: Item, name: str) -> str | None:
        """Return what to write for a secret, and tell what became of it. `name` is the variable for a literal one. None where what
        stands there is no key.
        """
        text = str(item.value).strip()
        found = name_in(text)
        if found is not None and steers(found):
            self._account.tell(
                item,
                "not possible",
                f"{found} steers this gateway or its shell, and goes to nobody: name the secret otherwise",
            )
            return None
        if found is not None:
            self._tell_reference(item, found, text)
            return f"env:{found}"
        if _NOT_A_KEY.fullmatch(text):
            self._account.tell(item, "not needed", "no key: what stands there is a placeholder")
            return None
        if _FILE.match(text):
            self._account.tell(item, "kept", "read from that file")
            return f"file:{text}"
        moved = self._free(_variable(name), text)
        self._account.tell(item, "changed", f"a literal secret: set it as {moved}; it stands in no file any more")
        return f"env:{moved}"

    def _tell_reference(self, item: Item, name: str, text: str) -> None:
        self.referred.add(name)
        own = self._variables.literal(name)
        if own is not None:
            self.moved.setdefault(name, own)
        if default_in(text):
            self._account.tell(item, "changed", f"env:{name}; its default in the file is not kept, set the variable")
        else:
            self._account.tell(item, "kept", f"env:{name}")

    def moved_to(self, name: str, secret: str) -> str | None:
        """Return the variable that a literal is moved into, by this name if it is free; None for a placeholder."""
        return None if _NOT_A_KEY.fullmatch(secret.strip()) else self._free(name, secret.strip())

    def _free(self, name: str, secret: str) -> str:
        """Return a variable for a literal that has no other value yet."""
        number, chosen = 1, name
        while self.moved.get(chosen, secret) != secret or chosen in self._taken or steers(chosen):
            number += 1
            chosen = f"{name}_{number}"
        self.moved[chosen] = secret
        return chosen


def _variable(name: str) -> str:
    found = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
    return found if found and not found[0].isdigit() else f"KEY_{found}"
