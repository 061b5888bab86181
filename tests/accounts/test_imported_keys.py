"""Keys of other gateways: they go on working, at the same cost and bounds as ours, and nothing but the key itself opens the door."""

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.directory import Directory
from accounts.errors import KeyBlocked, KeyExists, MalformedKey, UnknownKey
from accounts.keys import (
    KEY_CHARS,
    MintedKey,
    Pepper,
    digest_presented,
    digest_token,
    is_token,
    may_be_imported,
    mint_key,
    token_of,
)
from accounts.store import AccountStore, StoredKey

OLD = Pepper(id="old", secret=b"o" * 32)
NEW = Pepper(id="new", secret=b"n" * 32)
THEIRS = "sk-iq3LAOD-XDxZj-gSvOY1RA"


class Counted:
    """A store that counts what it is asked."""

    def __init__(self, store: AccountStore) -> None:
        self._store = store
        self.asked: list[str] = []

    async def find_keys(self, digests: list[str]) -> list[StoredKey | None]:
        self.asked += digests
        return await self._store.find_keys(digests)


class Clock:
    """Time that stands still until a test moves it."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def _accounts(engine: AsyncEngine) -> AccountStore:
    accounts = AccountStore(engine)
    await accounts.create_team("payments")
    return accounts


async def test_a_key_that_litellm_knows_by_its_hash_goes_on_working(engine: AsyncEngine) -> None:
    """The hash that LiteLLM stores is enough: the old key then gives its team, and the same answer from memory."""
    accounts = await _accounts(engine)
    token = hashlib.sha256(THEIRS.encode()).hexdigest()
    key_id = await accounts.import_key("payments", "app", NEW, token, last4="Y1RA", models=["gpt-4o"])
    directory = Directory(accounts, [NEW, OLD], imported_keys=True)
    caller = await directory.authenticate(THEIRS)
    assert (caller.key_id, caller.team_id, caller.allowed_models) == (key_id, "payments", frozenset({"gpt-4o"}))
    assert directory.lookup_fresh(THEIRS) is caller
    assert (await accounts.key_of("default", "payments", key_id)).last4 == "Y1RA"


async def test_an_older_pepper_verifies_it_too(engine: AsyncEngine) -> None:
    """A key that was imported before the pepper was rotated works after."""
    accounts = await _accounts(engine)
    await accounts.import_key("payments", "app", OLD, token_of(THEIRS), last4="Y1RA")
    assert (await Directory(accounts, [NEW, OLD], imported_keys=True).authenticate(THEIRS)).team_id == "payments"


async def test_what_the_databases_hold_opens_nothing(engine: AsyncEngine) -> None:
    """Neither LiteLLM's hash nor ours, presented as a key, is one: a stolen database of either is of no use."""
    accounts = await _accounts(engine)
    token = token_of(THEIRS)
    await accounts.import_key("payments", "app", NEW, token, last4="Y1RA")
    directory = Directory(accounts, [NEW], imported_keys=True)
    for stolen in (token, digest_token(token, NEW).hex(), token_of(token)):
        with pytest.raises(UnknownKey):
            await directory.authenticate(stolen)


async def test_no_text_is_both_kinds_of_key(engine: AsyncEngine) -> None:
    """A key of ours is found as ours alone, even where somebody imports its hash as another's."""
    accounts = await _accounts(engine)
    ours: MintedKey = await accounts.create_key("payments", "ours", NEW)
    await accounts.create_team("thieves")
    await accounts.import_key("thieves", "same", NEW, token_of(ours.plaintext), last4="same")
    caller = await Directory(accounts, [NEW], imported_keys=True).authenticate(ours.plaintext)
    assert caller.key_id == ours.key_id
    assert digest_presented(ours.plaintext, NEW).hex() == ours.digest


async def test_without_the_setting_nobody_is_asked(engine: AsyncEngine) -> None:
    """Where imported keys are off, a foreign key costs no look-up and gets the same words as any text that is no key."""
    accounts = await _accounts(engine)
    await accounts.import_key("payments", "app", NEW, token_of(THEIRS), last4="Y1RA")
    store = Counted(accounts)
    directory = Directory(store, [NEW])
    told = set()
    for presented in (THEIRS, "nonsense", "sk-unknown-1234567890"):
        with pytest.raises(MalformedKey) as refused:
            await directory.authenticate(presented)
        told.add(str(refused.value))
    assert len(told) == 1
    assert store.asked == []


async def test_an_unknown_foreign_key_is_remembered_as_ours_is(engine: AsyncEngine) -> None:
    """A key that nobody knows asks the store once within `unknown_s`, with one digest a pepper, and reads like an unknown key of ours."""
    store, clock = Counted(await _accounts(engine)), Clock()
    directory = Directory(store, [NEW, OLD], clock, imported_keys=True)
    words = set()
    for presented in (THEIRS, mint_key(NEW).plaintext):
        store.asked.clear()
        for _ in range(3):
            with pytest.raises(UnknownKey) as refused:
                await directory.authenticate(presented)
            words.add(str(refused.value))
        assert len(store.asked) == 2
    assert len(words) == 1


@pytest.mark.parametrize(
    "presented",
    ["", "short", "x" * 257, "sk-ünïcode-key-123456", "sk-with\nline-end-1234", "wb-" + "a" * 60, "\x00" * 20],
)
async def test_what_can_be_no_key_asks_nobody(engine: AsyncEngine, presented: str) -> None:
    """Too short, too long, not plain, or of our form with a wrong checksum: refused without a look-up."""
    store = Counted(await _accounts(engine))
    with pytest.raises(MalformedKey):
        await Directory(store, [NEW], imported_keys=True).authenticate(presented)
    assert store.asked == []


async def test_a_key_is_imported_once(engine: AsyncEngine) -> None:
    """The same hash again is refused, and changes nothing, also within a transaction that goes on."""
    accounts = await _accounts(engine)
    await accounts.import_key("payments", "app", NEW, token_of(THEIRS), last4="Y1RA")
    with pytest.raises(KeyExists):
        await accounts.import_key("payments", "again", NEW, token_of(THEIRS), last4="Y1RA")
    assert [key.name for key in await accounts.list_keys()] == ["app"]


async def test_blocked_and_expired_stay_so(engine: AsyncEngine) -> None:
    """A key that was blocked there is blocked here, with its own words; one that has expired is none."""
    accounts = await _accounts(engine)
    await accounts.import_key("payments", "blocked", NEW, token_of("sk-blocked-123456"), last4="", blocked=True)
    gone = datetime.now(UTC) - timedelta(days=1)
    await accounts.import_key("payments", "gone", NEW, token_of("sk-expired-123456"), last4="", expires_at=gone)
    directory = Directory(accounts, [NEW], imported_keys=True)
    with pytest.raises(KeyBlocked):
        await directory.authenticate("sk-blocked-123456")
    with pytest.raises(UnknownKey, match="unknown, revoked or expired"):
        await directory.authenticate("sk-expired-123456")


@pytest.mark.parametrize("token", ["", "abc", "g" * 64, "A" * 64, THEIRS, "0" * 63, "0" * 64 + "\n"])
def test_only_a_sha256_is_one(token: str) -> None:
    """What is not 64 lower-case hexadecimal digits is not taken for a hash."""
    assert not is_token(token)
    with pytest.raises(MalformedKey):
        digest_token(token, NEW)


def test_keys_of_ours_are_never_taken_for_anothers() -> None:
    """Whatever begins as ours has to have our checksum; the length of ours alone says nothing."""
    assert not may_be_imported(mint_key(NEW).plaintext)
    assert not may_be_imported("wb-anything")
    assert may_be_imported("s" * KEY_CHARS)
