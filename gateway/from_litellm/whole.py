"""The whole way over: LiteLLM's accounts into our database, in the order in which one needs the other."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.keys import Pepper
from accounts.store import DEFAULT_ORGANISATION
from cost.ledger.entries import TAG
from cost.prices import usd
from cost.scopes import ROWS
from gateway.from_litellm.applied import Applied, Importer
from gateway.from_litellm.history import end_user_pairs, post_history
from gateway.from_litellm.models import Models
from gateway.from_litellm.plan import Cap, caps, planned
from gateway.from_litellm.tables import FILE, Row, Theirs
from gateway.from_litellm.told import Account


async def import_accounts(
    engine: AsyncEngine,
    peppers: Sequence[Pepper],
    theirs: Theirs,
    models: Models,
    account: Account,
    *,
    since: date,
    now: datetime,
    dry_run: bool,
) -> None:
    """Bring organisations, people, teams, keys, limits, budgets and what was spent. Twice is once."""
    plan = planned(theirs, models, now)
    importer = Importer(engine, peppers, account, now, dry_run=dry_run)
    applied = await importer.apply(plan)
    await _end_users(importer, theirs, applied, account, now)
    await _tags(importer, theirs, now)
    _tell_left_behind(theirs, account)
    posted = await post_history(engine, theirs, plan, applied, models, account, since=since, now=now, dry_run=dry_run)
    words = f"${usd(posted.nanousd):,.2f} in {posted.groups:,} postings of the ledger (weighbridge ledger postings)"
    account.note(
        FILE, 0, "spending", "kept", words if posted.groups else "it is in the ledger already, or there is none"
    )


async def _end_users(importer: Importer, theirs: Theirs, applied: Applied, account: Account, now: datetime) -> None:
    """Set the budgets of end users with each team that they were seen in: here two teams may have different people of one name."""
    budgets = {str(row["budget_id"]): row for row in theirs["budgets"]}
    pairs: dict[str, list[tuple[str, str]]] = {}
    for organisation_id, team_id, end_user in end_user_pairs(theirs, applied):
        pairs.setdefault(end_user, []).append((organisation_id, team_id))
    for row in theirs["end_users"]:
        name, what = str(row["user_id"]), f"end user {row['user_id']}"
        if row.get("blocked"):
            account.note(FILE, 0, what, "not possible", "blocked there; a budget of 0 refuses them here")
        budget = budgets.get(str(row.get("budget_id")))
        if budget is None or budget.get("max_budget") is None:
            continue
        places = pairs.get(name, [])
        if not places:
            account.note(
                FILE,
                0,
                what,
                "not possible",
                "its budget: no team was seen with this end user (weighbridge budgets set end_user TEAM/NAME)",
            )
        for organisation_id, team_id in places:
            place = ROWS["end_user"].stored(f"{team_id}/{name}", organisation_id)
            await importer.budgets(
                organisation_id, what, _of_end_user(row, budget, place, organisation_id, len(places), now)
            )
            account.note(FILE, 0, what, "kept" if len(places) == 1 else "changed", f"a budget in team {team_id}")


def _of_end_user(row: Row, budget: Row, place: str, organisation_id: str, many: int, now: datetime) -> Iterator[Cap]:
    own = {**budget, "spend": row.get("spend"), "soft_budget": None}
    yield from caps(own, "end_user", place, organisation_id, now, counted=many == 1)


async def _tags(importer: Importer, theirs: Theirs, now: datetime) -> None:
    budgets = {str(row["budget_id"]): row for row in theirs["budgets"]}
    for row in theirs["tags"]:
        name, budget = str(row["tag_name"]), budgets.get(str(row.get("budget_id")))
        if budget is None or TAG.fullmatch(name) is None:
            continue
        place = ROWS["tag"].stored(name, DEFAULT_ORGANISATION)
        await importer.budgets(
            DEFAULT_ORGANISATION, f"tag {name}", caps(budget, "tag", place, DEFAULT_ORGANISATION, now, counted=False)
        )


def _tell_left_behind(theirs: Theirs, account: Account) -> None:
    if not theirs.has_days:
        words = "this LiteLLM has no sums by day: budgets run on, reports begin today"
        account.note(FILE, 0, "spending by day", "changed", words)
    for words, number in theirs.left_behind:
        account.note(FILE, 0, f"{number} {words.partition(':')[0]}", "not possible", words)
    members = sum(1 for row in theirs["team_members"] if row.get("budget_id"))
    if members:
        words = "a budget of a member in a team: give the member a key with a budget"
        account.note(FILE, 0, f"{members} members' budgets", "not possible", words)
    personal = {str(row.get("user_id")) for row in theirs["keys"] if not row.get("team_id")}
    for row in theirs["users"]:
        if row.get("max_budget") is not None and str(row["user_id"]) not in personal:
            words = "its budget bounds keys without a team, and there are none"
            account.note(FILE, 0, f"user {row['user_id']}", "not needed", words)
