"""Changes of prices, by the operator's administrators, each with its audit entry. Prices are shared by all
organisations.
"""

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from api.prices.listing import entry_told
from cost.price_book.book import DatedPrice
from cost.price_book.store import PriceStore
from cost.prices import Price


async def set_price(
    log: AuditLog, actor: Actor, target: str, price: Price, effective_us: int, *, note: str = ""
) -> DatedPrice:
    """Enter a price that overrides the configured ones. Idempotent. Raises PriceRefused."""
    async with log.change(actor, "price.set", reason=note) as change:
        store = PriceStore(change.within)
        before = await store.overrides()
        kept = await store.add_override(target, price, effective_us, note=note)
        if kept not in before:
            change.tell("price", f"{target} {kept.price.version}", None, entry_told(kept))
    return kept


async def withdraw_price(log: AuditLog, actor: Actor, target: str, version: str) -> None:
    """Withdraw an entered price; the next price in precedence applies again. Raises UnknownPrice and PriceRefused."""
    async with log.change(actor, "price.withdrawn") as change:
        store = PriceStore(change.within)
        before = {(each.target_id, each.price.version): each for each in await store.overrides()}
        await store.withdraw(target, version)
        found = before.get((target, version))
        change.tell("price", f"{target} {version}", None if found is None else entry_told(found), None)
