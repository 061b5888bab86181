"""Conversation affinity: the target that last served a conversation, the tokens it may still have cached, and the target
that a user turn was given.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType

import msgspec

# OpenAI caches prompts from 1,024 tokens up and keeps them for 5 to 10 minutes (its prompt caching guide).
CACHE_MIN_TOKENS = 1_024
CACHE_LIFE_S = 300.0
TURN_LIFE_S = 3_600.0
"""Seconds for which a turn's target is remembered after its last answer. Tools may take their time."""


class Sticky(msgspec.Struct, frozen=True):
    """A conversation's last target and the tokens that its prompt cache should hold."""

    target_id: str
    cached_tokens: int


class Kept(msgspec.Struct, frozen=True):
    """A turn's target, and the number of raises it stands for."""

    target_id: str
    raises: int


class TurnChoice(msgspec.Struct, frozen=True):
    """The targets that answered within one user turn, by the raises that the request had by then.

    Conversations that began alike look the same from here. By their raises, one that struggles does not lift the other.
    """

    targets: Mapping[int, str] = MappingProxyType({})

    def at(self, raises: int) -> Kept | None:
        """Return the target of the most raises up to these."""
        found = max((each for each in self.targets if each <= raises), default=None)
        return None if found is None else Kept(self.targets[found], found)

    def with_target(self, target_id: str, *raises: int) -> "TurnChoice":
        return TurnChoice({**self.targets, **dict.fromkeys(raises, target_id)})


class Affinity:
    """A bounded memory of conversations and of their turns, least recently used first out. Lives in this process."""

    def __init__(
        self, clock: Callable[[], float], *, max_conversations: int = 50_000, life_s: float = CACHE_LIFE_S
    ) -> None:
        self._clock = clock
        self._max = max_conversations
        self._life_s = life_s
        self._seen: OrderedDict[tuple[str, Hashable], tuple[float, Sticky]] = OrderedDict()
        self._turns: OrderedDict[tuple[str, Hashable, Hashable], tuple[float, TurnChoice]] = OrderedDict()

    def lookup(self, team_id: str, conversation: Hashable) -> Sticky | None:
        found = self._seen.get((team_id, conversation))
        if found is None or self._clock() - found[0] > self._life_s:
            return None
        return found[1]

    def remember(self, team_id: str, conversation: Hashable, target_id: str, tokens: int) -> None:
        """Record that `target_id` served the conversation. `tokens` counts the whole conversation so far; below the
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

    def turn_choice(self, team_id: str, conversation: Hashable, turn: Hashable) -> TurnChoice | None:
        found = self._turns.get((team_id, conversation, turn))
        if found is None or self._clock() - found[0] > TURN_LIFE_S:
            return None
        return found[1]

    def remember_turn(self, team_id: str, conversation: Hashable, turn: Hashable, target_id: str, *raises: int) -> None:
        """Record that `target_id` answered within the turn at these raises."""
        known = self.turn_choice(team_id, conversation, turn) or TurnChoice()
        key = (team_id, conversation, turn)
        self._turns[key] = (self._clock(), known.with_target(target_id, *raises))
        self._turns.move_to_end(key)
        if len(self._turns) > self._max:
            self._turns.popitem(last=False)
