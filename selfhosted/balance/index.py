"""Which replica is believed to have which beginnings of prompts in its KV cache.

Bound: of a pool, `max_blocks` pairs of block and replica are remembered, not more, each replica's share being
`max_blocks` divided by the replicas, or what its KV cache really holds where that is less. Measured where no two replicas
hold the same block, which is the worst case, a pair takes 250 to 340 bytes in CPython 3.11, depending on how full the
hash tables are, and 440 while one of them grows. So 512 bytes times `max_blocks` are not exceeded: 102 MB for the
default of 200,000; it is tested under a stream in which no prompt comes twice.

Within a replica what was used longest ago goes first, and of one prompt its end before its beginning, as engines do it:
so a system prompt that many share survives a flood of prompts that are all different.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class _ReplicaBlocks:
    """One replica's blocks."""

    __slots__ = ("bit", "blocks", "capacity", "exact", "occupied", "pinned")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks: OrderedDict[int, None] = OrderedDict()
        """Those that nobody uses now, the one used longest ago first; where it is exact, those that were told."""
        self.pinned: dict[int, int] = {}
        """Those that requests under way use, by how many."""
        self.capacity: int | None = None
        self.occupied = 0
        self.exact = False


class PrefixIndex:
    """Block → the replicas that hold it, as bits of one number: so 64 replicas are compared at once."""

    __slots__ = ("_free", "_holders", "_max_blocks", "_share", "_shelves")

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._holders: dict[int, int] = {}
        self._shelves: dict[str, _ReplicaBlocks] = {}
        self._free: list[int] = []
        self._share = max_blocks

    def __len__(self) -> int:
        """Pairs of block and replica."""
        return sum(len(shelf.blocks) + len(shelf.pinned) for shelf in self._shelves.values())

    def held(self, replica: str) -> int:
        shelf = self._shelves.get(replica)
        return len(shelf.blocks) + len(shelf.pinned) if shelf else 0

    def is_exact(self, replica: str) -> bool:
        shelf = self._shelves.get(replica)
        return shelf is not None and shelf.exact

    def bit(self, replica: str) -> int:
        """The bit that stands for it until it is forgotten."""
        return self._shelf(replica).bit

    def pinned(self, replica: str) -> int:
        """Blocks that requests under way use there."""
        return len(self._shelf(replica).pinned)

    def exact(self, replica: str, on: bool = True) -> None:
        """From now on only `store`, `remove` and `clear` say what it holds, but for what requests under way will put there."""
        shelf = self._shelf(replica)
        if shelf.exact != on:
            shelf.exact = on
            self.clear(replica)

    def capacity(self, replica: str, blocks: int | None, occupied: int = 0) -> None:
        """What its KV cache holds (None: it does not tell), and how much of that is taken by other than pinned blocks."""
        shelf = self._shelf(replica)
        shelf.capacity, shelf.occupied = blocks, occupied
        self._trim(shelf)

    def pin(self, replica: str, blocks: Sequence[int]) -> int:
        """A prompt of these blocks is sent there: whoever comes next finds them. How many of them could be noted, for
        `unpin`.
        """
        shelf = self._shelf(replica)
        pinned, order, holders, bit = shelf.pinned, shelf.blocks, self._holders, shelf.bit
        blocks = blocks[: max(0, self._share - len(pinned))]
        for block in blocks:
            if block in pinned:
                pinned[block] += 1
                continue
            pinned[block] = 1
            if block in order:
                if not shelf.exact:
                    del order[block]
            else:
                # The number for one holder is one object, shared by all blocks that only it holds.
                holders[block] = holders[block] | bit if block in holders else bit
        self._trim(shelf)
        return len(blocks)

    def unpin(self, replica: str, blocks: Sequence[int], read: int) -> None:
        """What `pin` did is over; the first `read` of them have been read, and stay until others need the room."""
        shelf = self._shelves.get(replica)
        if shelf is None:
            return
        pinned, order = shelf.pinned, shelf.blocks
        # Engines give a prompt's end back before its beginning.
        for at in range(len(blocks) - 1, -1, -1):
            block = blocks[at]
            users = pinned.get(block, 0)
            if users > 1:
                pinned[block] = users - 1
            elif users:
                del pinned[block]
                if not shelf.exact and at < read:
                    order[block] = None
                elif block not in order:
                    self._drop(block, shelf.bit)
        self._trim(shelf)

    def store(self, replica: str, blocks: Sequence[int]) -> None:
        """These blocks of one prompt, from its beginning on, are there."""
        shelf = self._shelf(replica)
        order, holders, bit = shelf.blocks, self._holders, shelf.bit
        for block in reversed(blocks[: max(0, self._share - len(shelf.pinned))]):
            if block in order:
                order.move_to_end(block)
            elif block not in shelf.pinned or shelf.exact:
                self._trim(shelf, 1)
                order[block] = None
                holders[block] = holders.get(block, 0) | bit

    def remove(self, replica: str, blocks: Iterable[int]) -> None:
        shelf = self._shelves.get(replica)
        if shelf is None:
            return
        for block in blocks:
            if block in shelf.blocks:
                del shelf.blocks[block]
                if block not in shelf.pinned:
                    self._drop(block, shelf.bit)

    def clear(self, replica: str) -> None:
        """It holds nothing, such as after a restart; requests under way are not touched."""
        shelf = self._shelves.get(replica)
        if shelf is None:
            return
        for block in shelf.blocks:
            if block not in shelf.pinned:
                self._drop(block, shelf.bit)
        shelf.blocks = OrderedDict()

    def forget(self, replica: str) -> None:
        """It has left the pool."""
        self.clear(replica)
        shelf = self._shelves.pop(replica, None)
        if shelf is not None:
            for block in shelf.pinned:
                self._drop(block, shelf.bit)
            self._free.append(shelf.bit)
            self._share_out()

    def depths(self, blocks: Sequence[int]) -> dict[str, int]:
        """Replica → leading blocks of the prompt that it holds; those that hold none are left out."""
        (common, bits), deeper = self.match(blocks)
        found = {name: deeper.get(s.bit, common if s.bit & bits else 0) for name, s in self._shelves.items()}
        return {name: depth for name, depth in found.items() if depth}

    def match(self, blocks: Sequence[int]) -> tuple[tuple[int, int], dict[int, int]]:
        """((depth, the bits of those that hold just so much), bit → depth of the others that hold any).

        Nearly all replicas hold a common system prompt and nothing more; they are told as one set, not one by one.
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
        return _told(groups)

    def _shelf(self, replica: str) -> _ReplicaBlocks:
        shelf = self._shelves.get(replica)
        if shelf is None:
            shelf = _ReplicaBlocks(self._free.pop() if self._free else 1 << len(self._shelves))
            self._shelves[replica] = shelf
            self._share_out()
        return shelf

    def _share_out(self) -> None:
        self._share = self._max_blocks // max(1, len(self._shelves))
        for shelf in self._shelves.values():
            while len(shelf.pinned) > self._share:
                block, _users = shelf.pinned.popitem()
                if block not in shelf.blocks:
                    self._drop(block, shelf.bit)
            self._trim(shelf)

    def _trim(self, shelf: _ReplicaBlocks, more: int = 0) -> None:
        limit = self._share - len(shelf.pinned)
        if shelf.capacity is not None and not shelf.exact:
            limit = min(limit, shelf.capacity - shelf.occupied - len(shelf.pinned))
        order = shelf.blocks
        for _ in range(min(len(order), len(order) + more - limit)):
            block, _nothing = order.popitem(last=False)
            if block not in shelf.pinned:
                self._drop(block, shelf.bit)

    def _drop(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


def _told(groups: list[tuple[int, int]]) -> tuple[tuple[int, int], dict[int, int]]:
    """The largest group stays a set; of the others each bit is told."""
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
