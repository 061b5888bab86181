"""Prefix index: the prompt blocks that each replica is believed to have in its KV cache.

Bound: of a pool, at most `max_blocks` pairs of block and replica are remembered, each replica's share being
`max_blocks` divided by the replicas, or what its KV cache really holds where that is less. Measured where no two
replicas hold the same block, which is the worst case, a pair takes 250 to 340 bytes in CPython 3.11, depending on how
full the hash tables are, and 440 while one of them grows. So 512 bytes times `max_blocks` are not exceeded: 102 MB for
the default of 200,000; it is tested under a stream in which no prompt comes twice.

Within a replica the least recently used block goes first, and of one prompt its end before its beginning, as engines
evict: so a system prompt that many share survives a flood of prompts that are all different.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class _ReplicaBlocks:
    """The blocks of one replica."""

    __slots__ = ("bit", "blocks", "capacity", "exact", "occupied", "pinned")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks: OrderedDict[int, None] = OrderedDict()
        """Cached blocks in the order of their last use, oldest first; where `exact`, those that the engine reported."""
        self.pinned: dict[int, int] = {}
        """Number of requests under way that use each block."""
        self.capacity: int | None = None
        self.occupied = 0
        self.exact = False


class PrefixIndex:
    """A map from each block to the set of replicas that hold it, as bits of one integer: 64 replicas are compared at
    once.
    """

    __slots__ = ("_free", "_holders", "_max_blocks", "_replicas", "_share")

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._holders: dict[int, int] = {}
        self._replicas: dict[str, _ReplicaBlocks] = {}
        self._free: list[int] = []
        self._share = max_blocks

    def __len__(self) -> int:
        """Return the number of (block, replica) pairs."""
        return sum(len(entry.blocks) + len(entry.pinned) for entry in self._replicas.values())

    def held(self, replica: str) -> int:
        """Return the number of blocks that the replica is believed to hold."""
        entry = self._replicas.get(replica)
        return len(entry.blocks) + len(entry.pinned) if entry else 0

    def is_exact(self, replica: str) -> bool:
        entry = self._replicas.get(replica)
        return entry is not None and entry.exact

    def bit(self, replica: str) -> int:
        """Return the bit that stands for the replica until it is forgotten."""
        return self._blocks_of(replica).bit

    def pinned(self, replica: str) -> int:
        """Return the number of blocks that requests under way use there."""
        return len(self._blocks_of(replica).pinned)

    def exact(self, replica: str, on: bool = True) -> None:
        """Switch the replica to exact tracking: from now on its blocks come from `store`, `remove` and `clear` only,
        besides those pinned by requests under way.
        """
        entry = self._blocks_of(replica)
        if entry.exact != on:
            entry.exact = on
            self.clear(replica)

    def capacity(self, replica: str, blocks: int | None, occupied: int = 0) -> None:
        """Set the blocks that its KV cache holds (None: unknown), and how many are occupied by other than pinned
        blocks.
        """
        entry = self._blocks_of(replica)
        entry.capacity, entry.occupied = blocks, occupied
        self._trim(entry)

    def pin(self, replica: str, blocks: Sequence[int]) -> int:
        """Note a prompt of these blocks as sent to the replica, so that the next one matches it. Returns how many of
        the blocks fit in, for `unpin`.
        """
        entry = self._blocks_of(replica)
        pinned, order, holders, bit = entry.pinned, entry.blocks, self._holders, entry.bit
        blocks = blocks[: max(0, self._share - len(pinned))]
        for block in blocks:
            if block in pinned:
                pinned[block] += 1
                continue
            pinned[block] = 1
            if block in order:
                if not entry.exact:
                    del order[block]
            else:
                # The number for one holder is one object, shared by all blocks that only it holds.
                holders[block] = holders[block] | bit if block in holders else bit
        self._trim(entry)
        return len(blocks)

    def unpin(self, replica: str, blocks: Sequence[int], read: int) -> None:
        """Undo `pin`. The first `read` blocks were prefilled, and stay until others need the room."""
        entry = self._replicas.get(replica)
        if entry is None:
            return
        pinned, order = entry.pinned, entry.blocks
        # Engines give a prompt's end back before its beginning.
        for at in range(len(blocks) - 1, -1, -1):
            block = blocks[at]
            users = pinned.get(block, 0)
            if users > 1:
                pinned[block] = users - 1
            elif users:
                del pinned[block]
                if not entry.exact and at < read:
                    order[block] = None
                elif block not in order:
                    self._drop(block, entry.bit)
        self._trim(entry)

    def store(self, replica: str, blocks: Sequence[int]) -> None:
        """Note these leading blocks of one prompt as cached at the replica."""
        entry = self._blocks_of(replica)
        order, holders, bit = entry.blocks, self._holders, entry.bit
        for block in reversed(blocks[: max(0, self._share - len(entry.pinned))]):
            if block in order:
                order.move_to_end(block)
            elif block not in entry.pinned or entry.exact:
                self._trim(entry, 1)
                order[block] = None
                holders[block] = holders.get(block, 0) | bit

    def remove(self, replica: str, blocks: Iterable[int]) -> None:
        """Drop blocks that the replica no longer caches."""
        entry = self._replicas.get(replica)
        if entry is None:
            return
        for block in blocks:
            if block in entry.blocks:
                del entry.blocks[block]
                if block not in entry.pinned:
                    self._drop(block, entry.bit)

    def clear(self, replica: str) -> None:
        """Drop the replica's blocks, such as after a restart; those pinned by requests under way stay."""
        entry = self._replicas.get(replica)
        if entry is None:
            return
        for block in entry.blocks:
            if block not in entry.pinned:
                self._drop(block, entry.bit)
        entry.blocks = OrderedDict()

    def forget(self, replica: str) -> None:
        """Drop a replica that has left the pool."""
        self.clear(replica)
        entry = self._replicas.pop(replica, None)
        if entry is not None:
            for block in entry.pinned:
                self._drop(block, entry.bit)
            self._free.append(entry.bit)
            self._share_out()

    def depths(self, blocks: Sequence[int]) -> dict[str, int]:
        """Return the number of leading blocks of the prompt that each replica holds, by name; replicas that hold none are left
        out.
        """
        (common, bits), deeper = self.match(blocks)
        found = {name: deeper.get(s.bit, common if s.bit & bits else 0) for name, s in self._replicas.items()}
        return {name: depth for name, depth in found.items() if depth}

    def match(self, blocks: Sequence[int]) -> tuple[tuple[int, int], dict[int, int]]:
        """Return ((depth, bits of the largest set of replicas that hold just so many blocks), depth by bit of the
        others that hold any).

        Nearly all replicas hold a common system prompt and nothing more, so they are returned as one set.
        """
        holders = self._holders
        alive = -1
        depth = 0
        groups: list[tuple[int, int]] = []
        for block in blocks:
            still = holders.get(block, 0)
            if still != alive:
                still &= alive
                if depth and still != alive:
                    groups.append((depth, alive ^ still))
                alive = still
                if not still:
                    break
            depth += 1
        if depth and alive:
            groups.append((depth, alive))
        return _split_groups(groups)

    def _blocks_of(self, replica: str) -> _ReplicaBlocks:
        entry = self._replicas.get(replica)
        if entry is None:
            entry = _ReplicaBlocks(self._free.pop() if self._free else 1 << len(self._replicas))
            self._replicas[replica] = entry
            self._share_out()
        return entry

    def _share_out(self) -> None:
        self._share = self._max_blocks // max(1, len(self._replicas))
        for entry in self._replicas.values():
            while len(entry.pinned) > self._share:
                block, _users = entry.pinned.popitem()
                if block not in entry.blocks:
                    self._drop(block, entry.bit)
            self._trim(entry)

    def _trim(self, entry: _ReplicaBlocks, more: int = 0) -> None:
        limit = self._share - len(entry.pinned)
        if entry.capacity is not None and not entry.exact:
            limit = min(limit, entry.capacity - entry.occupied - len(entry.pinned))
        order = entry.blocks
        over = len(order) + more - limit
        if over <= 0:
            return
        for _ in range(min(len(order), over)):
            block, _nothing = order.popitem(last=False)
            if block not in entry.pinned:
                self._drop(block, entry.bit)

    def _drop(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


def _split_groups(groups: list[tuple[int, int]]) -> tuple[tuple[int, int], dict[int, int]]:
    """Return the largest group as a set, and the depth of each bit of the others."""
    if not groups:
        return (0, 0), {}
    common = max(groups, key=lambda group: group[1].bit_count())
    deeper: dict[int, int] = {}
    for group in groups:
        if group is not common:
            depth, bits = group
            while bits:
                bit = bits & -bits
                deeper[bit] = depth
                bits ^= bit
    return common, deeper
