"""Simulated paged KV cache with prefix caching: references, cached free blocks, and eviction.

What a sequence gave back is taken again in the order in which it came, answers too, though no prompt finds them here.
Room is counted in the engine's own blocks (16 tokens with vLLM). What prompts share is known in the trace's blocks (512
tokens), of which each is a whole number of engine blocks; a prompt's last, partial block is private to it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

BlockEvent = Callable[[int, bool], None]
"""Callback with a block that became shareable (True), or was evicted (False)."""


class KvCache:
    """The blocks of one engine. `take` and `reference` must be asked for no more than `available`."""

    def __init__(
        self, capacity: int, *, shared_size: int, caching: bool = True, changed: BlockEvent | None = None
    ) -> None:
        """`capacity` in engine blocks; `shared_size` is how many of them one block of the trace takes."""
        self.capacity = capacity
        self._shared_size = shared_size
        self._caching = caching
        self._changed = changed
        self._private = 0
        self._references: dict[int, int] = {}
        self._free: OrderedDict[int, int] = OrderedDict()
        """Engine blocks of each block that no sequence holds, the first to be evicted at the front. What was private, as answers are,
        has numbers below 0, which no prompt matches."""
        self._kept = 0
        self._last_private = 0

    @property
    def used(self) -> int:
        """Engine blocks that running sequences hold."""
        return self._private + len(self._references) * self._shared_size

    @property
    def cached(self) -> int:
        """Engine blocks that no sequence holds, but that the next prompt with the same prefix finds."""
        return sum(size for block, size in self._free.items() if block >= 0)

    @property
    def available(self) -> int:
        """Engine blocks that are free or may be evicted."""
        return self.capacity - self.used

    @property
    def usage(self) -> float:
        return self.used / self.capacity

    def matched(self, blocks: Sequence[int]) -> int:
        """Return the number of leading blocks that are in the cache."""
        references, free = self._references, self._free
        for count, block in enumerate(blocks):
            if block not in references and block not in free:
                return count
        return len(blocks)

    def cost(self, total: int, blocks: Sequence[int]) -> int:
        """Return the engine blocks that become unavailable when a sequence of `total` takes these matched blocks and
        the rest.
        """
        idle = sum(1 for block in blocks if block not in self._references)
        return total - (len(blocks) - idle) * self._shared_size

    def reference(self, blocks: Sequence[int]) -> None:
        """Add a reference to blocks that are in the cache."""
        for block in blocks:
            count = self._references.get(block, 0)
            if count == 0:
                self._kept -= self._free.pop(block)
            self._references[block] = count + 1

    def take(self, count: int) -> None:
        """Take private blocks, evicting the least recently used ones."""
        self._private += count
        lacking = self.used + self._kept - self.capacity
        while lacking > 0:
            block, size = self._free.popitem(last=False)
            if block < 0 and size > lacking:
                self._free[block] = size - lacking
                self._free.move_to_end(block, last=False)
                size = lacking
            elif block >= 0 and self._changed is not None:
                self._changed(block, False)
            self._kept -= size
            lacking -= size

    def publish(self, block: int) -> bool:
        """Make a computed private block of a prompt shareable. False: another copy is cached already, and this one
        stays private.
        """
        if not self._caching or block in self._references or block in self._free:
            return False
        self._private -= self._shared_size
        self._references[block] = 1
        if self._changed is not None:
            self._changed(block, True)
        return True

    def release(self, private: int, shared: Sequence[int]) -> None:
        """Release everything that a sequence held; its last blocks are evicted before its first. Its answer, and what of its prompt is
        nobody else's, keeps its place until it is the oldest, as vLLM hands out its free blocks in the order in which they came back.
        """
        self._private -= private
        if self._caching and private:
            self._last_private -= 1
            self._keep(self._last_private, private)
        for block in reversed(shared):
            count = self._references[block] - 1
            if count:
                self._references[block] = count
            else:
                del self._references[block]
                self._keep(block, self._shared_size)

    def _keep(self, block: int, size: int) -> None:
        self._free[block] = size
        self._kept += size
