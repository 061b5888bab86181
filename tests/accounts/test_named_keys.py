"""Callers by a key's team and name: the store's word, for a moment, and never more than a member's rights."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.errors import DirectoryUnavailable, KeyBlocked, UnknownKey
from accounts.keys import Pepper
from accounts.named_keys import NamedKeys
from accounts.store import AccountStore, StoredKey

PEPPER = Pepper(id="p1", secret=b"a" * 32)
_NOW = 1_800_000_000.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def stored(**changed: Any) -> StoredKey:
    usual: dict[str, Any] = {
        "key_id": "key_1",
        "name": "portal",
        "digest": "d",
        "pepper_id": "p",
        "team_id": "team_a",
        "organisation_id": "default",
        "allowed_models": None,
        "revoked_at": None,
        "expires_at": None,
    }
    return StoredKey(**(usual | changed))


class Store:
    def __init__(self, key: StoredKey | None) -> None:
        self.key = key
        self.asked = 0
        self.is_away = False

    async def find(self, _team_id: str, _name: str) -> StoredKey | None:
        self.asked += 1
        if self.is_away:
            raise OSError
        return self.key


def keys(store: Store) -> tuple[NamedKeys, Clock]:
    clock = Clock()
    return NamedKeys(store.find, clock, wall_clock=lambda: _NOW, fresh_s=2, outage_s=60), clock


async def test_a_key_is_asked_for_once_in_a_while_and_outlives_an_outage() -> None:
    """As keys that are presented do: revoking holds within seconds, and a database that is away throws nobody out for a minute."""
    store = Store(stored())
    named, clock = keys(store)
    for _ in range(3):
        assert (await named.caller("default", "team_a", "portal")).key_id == "key_1"
    assert store.asked == 1
    clock.now += 3
    store.is_away = True
    assert (await named.caller("default", "team_a", "portal")).team_id == "team_a"
    clock.now += 60
    with pytest.raises(DirectoryUnavailable):
        await named.caller("default", "team_a", "portal")
    store.is_away, store.key = False, None
    with pytest.raises(UnknownKey):
        await named.caller("default", "team_a", "portal")


@pytest.mark.parametrize(
    "changed",
    [
        {"role": "admin"},
        {"role": "finance"},
        {"organisation_id": "others"},
        {"expires_at": datetime.fromtimestamp(_NOW, UTC) - timedelta(seconds=1)},
        {"revoked_at": datetime.fromtimestamp(_NOW, UTC)},
    ],
)
async def test_what_is_no_working_members_key_here_is_unknown(changed: dict[str, Any]) -> None:
    """Whoever asks reads the same words for all of them."""
    named, _ = keys(Store(stored(**changed)))
    with pytest.raises(UnknownKey, match="no working member's key"):
        await named.caller("default", "team_a", "portal")


async def test_a_blocked_key_says_so() -> None:
    """Its team's administrators can mend that."""
    named, _ = keys(Store(stored(blocked_at=datetime.fromtimestamp(_NOW, UTC))))
    with pytest.raises(KeyBlocked):
        await named.caller("default", "team_a", "portal")


async def test_the_store_finds_the_newest_key_of_the_name_that_is_not_revoked(engine: AsyncEngine) -> None:
    """On SQLite and on PostgreSQL."""
    now = [datetime(2026, 4, 5, 12, tzinfo=UTC)]
    store = AccountStore(engine, clock=lambda: now[0])
    await store.create_team("team_a")
    await store.create_team("team_b")
    made = []
    for team in ("team_a", "team_a", "team_a", "team_b"):
        made.append((await store.create_key(team, "portal", PEPPER)).key_id)
        now[0] += timedelta(minutes=1)
    await store.revoke_key(made[2])
    found = await store.find_named_key("team_a", "portal")
    assert found is not None
    assert (found.key_id, found.team_id, found.organisation_id) == (made[1], "team_a", "default")
    assert await store.find_named_key("team_a", "other") is None
