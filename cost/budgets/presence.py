"""Process presence that also deletes a dead process's budget grants when its journal is recovered."""

from collections.abc import Collection

from cost.budgets.grants import Grants
from cost.ledger.ledger import ProcessPresence


class BudgetPresence:
    """Wraps a `ProcessPresence`; forgetting a process deletes its grants too."""

    def __init__(self, presence: ProcessPresence, grants: Grants) -> None:
        self._presence = presence
        self._grants = grants

    @property
    def may_be_given_up(self) -> bool:
        """True if other processes may have closed attempts of this one."""
        return self._presence.may_be_given_up

    async def show(self, boot_id: str) -> None:
        """Record that this process is alive."""
        await self._presence.show(boot_id)

    async def forget(self, boot_id: str) -> None:
        """Forget a process that has nothing open. Grants go first: if that fails, the caller asks again."""
        await self._grants.forget_boot(boot_id)
        await self._presence.forget(boot_id)

    async def expire(self, ours: Collection[str]) -> None:
        """Close what lost hosts left open; `BudgetWatch.forget_dead` deletes their grants a little later."""
        await self._presence.expire(ours)
