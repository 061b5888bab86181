"""Conversation affinity: the target that last served a conversation, and the tokens it may still have cached."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import msgspec

# OpenAI caches prompts from 1,024 tokens up and keeps them for 5 to 10 minutes (its prompt caching guide).
CACHE_MIN_TOKENS = 1_024
CACHE_LIFE_S = 300.0


class Sticky(msgspec.Struct, frozen=True):
    """A conversation's last target and the tokens that its prompt cache should hold."""

    target_id: str
    cached_tokens: int


class Affinity:
    """A bounded memory of conversations, least recently used first out. Lives in this process."""

    def __init__(
        self, clock: Callable[[], float], *, max_conversations: int = 50_000, life_s: float = CACHE_LIFE_S
    ) -> None:
        self._clock = clock
        self._max = max_conversations
        self._life_s = life_s
        self._seen: OrderedDict[tuple[str, Hashable], tuple[float, Sticky]] = OrderedDict()

    def lookup(self, team_id: str, conversation: Hashable) -> Sticky | None:
        found = self._seen.get((team_id, conversation))
        if found is None or self._clock() - found[0] > self._life_s:
            return None
        return found[1]

    def remember(self, team_id: str, conversation: Hashable, target_id: str, tokens: int) -> None:
        """Records that `target_id` served the conversation. `tokens` counts the whole conversation so far; below the
        cacheable minimum the entry is dropped instead.
        """
        key = (team_id, conversation)
        if tokens < CACHE_MIN_TOKENS:
            # Nothing is lost by moving; forgetting also drops what an earlier target held.
            self._seen.pop(key, None)
            return
        self._seen[key] = (self._clock(), Sticky(target_id, tokens))
        self._seen.move_to_end(key)
        if len(self._seen) > self._max:
            self._seen.popitem(last=False)
