"""Whoever recovers a dead process gives its grants back, in the same breath."""

from collections.abc import Collection

from cost.budgets.grants import Grants
from cost.ledger.ledger import ProcessPresence


class BudgetPresence:
    """The same presence; a process that is forgotten has no grants any more."""

    def __init__(self, presence: ProcessPresence, grants: Grants) -> None:
        self._presence = presence
        self._grants = grants

    @property
    def may_be_given_up(self) -> bool:
        """Whether others may have closed attempts of this process."""
        return self._presence.may_be_given_up

    async def show(self, boot_id: str) -> None:
        """Tell others that this process lives."""
        await self._presence.show(boot_id)

    async def forget(self, boot_id: str) -> None:
        """Nothing of this process is open any more. The grants first: who fails here is asked again."""
        await self._grants.forget_boot(boot_id)
        await self._presence.forget(boot_id)

    async def expire(self, ours: Collection[str]) -> None:
        """Close what lost hosts left open; the grants of those are found and forgotten a little later."""
        await self._presence.expire(ours)
