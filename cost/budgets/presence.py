"""Process presence that also deletes a dead process's budget grants when its journal is recovered."""

from collections.abc import Collection

from cost.budgets.grants import Grants
from cost.ledger.drain import ProcessPresence


class BudgetPresence:
    """A `ProcessPresence` that also deletes a process's grants when it forgets the process."""

    def __init__(self, presence: ProcessPresence, grants: Grants) -> None:
        self._presence = presence
        self._grants = grants

    def may_be_given_up(self, boot_id: str) -> bool:
        """Return True if other hosts may have closed attempts of this process."""
        return self._presence.may_be_given_up(boot_id)

    async def show(self, boot_ids: Collection[str], *, drained: Collection[str] = ()) -> None:
        """Record that these processes are alive."""
        await self._presence.show(boot_ids, drained=drained)

    async def forget(self, boot_id: str) -> None:
        """Forget a process that has nothing open. Grants go first: if that fails, the caller asks again."""
        await self._grants.forget_boot(boot_id)
        await self._presence.forget(boot_id)

    async def expire(self, ours: Collection[str]) -> None:
        """Close the attempts that lost hosts left open; `BudgetWatch.forget_dead` deletes their grants a little later."""
        await self._presence.expire(ours)
