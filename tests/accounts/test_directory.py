"""Who a key belongs to, how long that is believed, and what happens when nobody can say."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.directory import Directory
from accounts.errors import DirectoryUnavailable, KeyBlocked, MalformedKey, UnknownKey
from accounts.key_lookups import KEYS_OF_A_QUERY, KeyLookups
from accounts.keys import MintedKey, Pepper, mint_key
from accounts.store import AccountStore, StoredKey

OLD = Pepper(id="old", secret=b"o" * 32)
NEW = Pepper(id="new", secret=b"n" * 32)


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ScriptedKeys:
    """A key store in memory that can be down, hang, or be held in the middle of an answer."""

    def __init__(self) -> None:
        self.keys: dict[str, StoredKey] = {}
        self.lookups = 0
        self.failure: Exception | None = None
        self.failing = 0
        """So many look-ups fail before one succeeds."""
        self.gate = asyncio.Event()
        self.gate.set()

    def add(self, pepper: Pepper = NEW, expires_at: datetime | None = None) -> MintedKey:
        minted = mint_key(pepper)
        self.keys[minted.digest] = StoredKey(
            key_id=minted.key_id,
            name="ci",
            digest=minted.digest,
            pepper_id=pepper.id,
            team_id="team_a",
            organisation_id="default",
            allowed_models=frozenset({"gpt-4o"}),
            revoked_at=None,
            expires_at=expires_at,
        )
        return minted

    def revoke(self, minted: MintedKey) -> None:
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        self.keys[minted.digest] = msgspec.structs.replace(self.keys[minted.digest], revoked_at=moment)

    async def find_keys(self, digests: list[str]) -> list[StoredKey | None]:
        self.lookups += 1
        found = [self.keys.get(digest) for digest in digests]
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if self.failing:
            self.failing -= 1
            raise ConnectionError("restarting")
        return found


@pytest.fixture
def keys() -> ScriptedKeys:
    return ScriptedKeys()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(keys: ScriptedKeys, clock: Clock) -> Directory:
    return Directory(keys, [NEW, OLD], clock, wall_clock=clock, max_entries=100, max_waiting=40, lookup_timeout_s=0.05)


async def test_a_keys_role_reaches_its_caller(keys: ScriptedKeys, clock: Clock) -> None:
    """What the store says of a key's role is what everybody behind the directory is told."""
    minted = keys.add()
    keys.keys[minted.digest] = msgspec.structs.replace(keys.keys[minted.digest], role="finance")
    assert (await Directory(keys, [NEW], clock).authenticate(minted.plaintext)).role == "finance"


async def test_a_key_names_its_caller(directory: Directory, keys: ScriptedKeys) -> None:
    """A valid key gives its id, team, organisation and allowed models."""
    minted = keys.add()
    caller = await directory.authenticate(minted.plaintext)
    assert (caller.key_id, caller.team_id, caller.organisation_id) == (minted.key_id, "team_a", "default")
    assert caller.allowed_models == frozenset({"gpt-4o"})


async def test_a_fresh_answer_is_not_asked_again(directory: Directory, keys: ScriptedKeys, clock: Clock) -> None:
    """Within `fresh_s` the memory answers at once; after it the store is asked again."""
    minted = keys.add()
    assert directory.lookup_fresh(minted.plaintext) is None
    caller = await directory.authenticate(minted.plaintext)
    clock.now += 1.9
    assert directory.lookup_fresh(minted.plaintext) is caller
    assert keys.lookups == 1
    clock.now += 0.2
    assert directory.lookup_fresh(minted.plaintext) is None
    await directory.authenticate(minted.plaintext)
    assert keys.lookups == 2


async def test_a_revoked_key_is_refused_soon(directory: Directory, keys: ScriptedKeys, clock: Clock) -> None:
    """Once its answer is no longer fresh, a revoked key is unknown."""
    minted = keys.add()
    await directory.authenticate(minted.plaintext)
    keys.revoke(minted)
    clock.now += 2.0
    with pytest.raises(UnknownKey):
        await directory.authenticate(minted.plaintext)


@pytest.mark.parametrize("field", ["blocked_at", "team_blocked_at"])
async def test_a_block_holds_as_soon_as_a_revocation_and_ends(
    directory: Directory, keys: ScriptedKeys, clock: Clock, field: str
) -> None:
    """A key that is blocked, or whose team is, is refused with words of its own, without asking for each request; then it works again."""
    minted, moment = keys.add(), datetime(2026, 1, 1, tzinfo=UTC)
    await directory.authenticate(minted.plaintext)
    keys.keys[minted.digest] = msgspec.structs.replace(keys.keys[minted.digest], **{field: moment})
    clock.now += 2.0
    for _ in range(3):
        with pytest.raises(KeyBlocked, match="blocked"):
            await directory.authenticate(minted.plaintext)
    assert keys.lookups == 2
    keys.keys[minted.digest] = msgspec.structs.replace(keys.keys[minted.digest], **{field: None})
    clock.now += 1.0
    assert (await directory.authenticate(minted.plaintext)).key_id == minted.key_id


async def test_freshness_counts_from_the_question(directory: Directory, keys: ScriptedKeys, clock: Clock) -> None:
    """A slow answer is believed from when it was asked for, not from when it came."""
    minted = keys.add()
    keys.gate.clear()
    waiting = asyncio.create_task(directory.authenticate(minted.plaintext))
    await asyncio.sleep(0.01)
    assert keys.lookups == 1
    clock.now += 1.5
    keys.gate.set()
    await waiting
    clock.now += 0.6
    assert directory.lookup_fresh(minted.plaintext) is None


async def test_every_pepper_is_accepted(directory: Directory, keys: ScriptedKeys) -> None:
    """A key stored under an old pepper stays valid, and is remembered like any other."""
    minted = keys.add(OLD)
    caller = await directory.authenticate(minted.plaintext)
    assert directory.lookup_fresh(minted.plaintext) is caller
    with pytest.raises(UnknownKey):
        await Directory(keys, [NEW]).authenticate(minted.plaintext)


async def test_keys_with_a_long_common_beginning_are_apart(directory: Directory, keys: ScriptedKeys) -> None:
    """A valid key says nothing about one that differs at its end only."""
    bytes_of_one = b"\x01" * 16 + b"\x07" * 31
    parts = iter([b"\x01" * 16, bytes_of_one[16:] + b"\x01", b"\x01" * 16, bytes_of_one[16:] + b"\x02"])
    first = mint_key(NEW, random_bytes=lambda _: next(parts))
    second = mint_key(NEW, random_bytes=lambda _: next(parts))
    assert first.plaintext[:55] == second.plaintext[:55]
    assert first.key_id == second.key_id
    template = keys.keys[keys.add().digest]
    keys.keys = {first.digest: msgspec.structs.replace(template, digest=first.digest)}
    await directory.authenticate(first.plaintext)
    assert directory.lookup_fresh(second.plaintext) is None
    with pytest.raises(UnknownKey):
        await directory.authenticate(second.plaintext)


async def test_malformed_keys_ask_nobody(directory: Directory, keys: ScriptedKeys) -> None:
    """What cannot be a key is refused without a lookup."""
    for presented in ("", "wb-", "sk-123", keys.add().plaintext[:-1] + "!", "ü" * 65, "x" * 100_000):
        with pytest.raises(MalformedKey):
            await directory.authenticate(presented)
    assert keys.lookups == 0


async def test_unknown_keys_are_remembered_for_a_moment(directory: Directory, keys: ScriptedKeys, clock: Clock) -> None:
    """Knocking again with an unknown key costs no lookup, until a moment has passed."""
    unknown = mint_key(NEW).plaintext
    for _ in range(3):
        with pytest.raises(UnknownKey):
            await directory.authenticate(unknown)
    assert keys.lookups == 1
    clock.now += 1.1
    with pytest.raises(UnknownKey):
        await directory.authenticate(unknown)
    assert keys.lookups == 2


async def test_one_lookup_serves_all_who_wait(directory: Directory, keys: ScriptedKeys) -> None:
    """Callers with the same key share a lookup, and one that hangs up does not end it for the others."""
    minted = keys.add()
    keys.gate.clear()
    waiting = [asyncio.create_task(directory.authenticate(minted.plaintext)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    keys.gate.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert {type(answer).__name__ for answer in answers[1:]} == {"Caller"}
    assert keys.lookups == 1


@pytest.mark.parametrize("failure", [OSError("refused"), TimeoutError(), RuntimeError("a bug")])
async def test_an_outage_is_never_an_unknown_key(directory: Directory, keys: ScriptedKeys, failure: Exception) -> None:
    """When the store fails, whatever way, a key nobody saw yet is neither valid nor unknown."""
    minted = keys.add()
    keys.failure = failure
    with pytest.raises(DirectoryUnavailable):
        await directory.authenticate(minted.plaintext)
    keys.failure = None
    assert (await directory.authenticate(minted.plaintext)).key_id == minted.key_id


async def test_a_hanging_store_is_an_outage(directory: Directory, keys: ScriptedKeys) -> None:
    """A store that does not answer in time is down."""
    keys.gate.clear()
    with pytest.raises(DirectoryUnavailable):
        await directory.authenticate(keys.add().plaintext)


async def test_a_key_seen_lately_is_accepted_in_an_outage(
    directory: Directory, keys: ScriptedKeys, clock: Clock
) -> None:
    """Memory answers for `outage_s` after the last confirmation, and not longer."""
    minted = keys.add()
    await directory.authenticate(minted.plaintext)
    keys.failure = OSError("down")
    clock.now += 3
    assert (await directory.authenticate(minted.plaintext)).key_id == minted.key_id
    assert directory.lookup_fresh(minted.plaintext) is not None
    assert keys.lookups == 2
    clock.now += 56.5
    await directory.authenticate(minted.plaintext)
    clock.now += 0.6
    assert directory.lookup_fresh(minted.plaintext) is None
    with pytest.raises(DirectoryUnavailable):
        await directory.authenticate(minted.plaintext)


async def test_a_revoked_key_is_not_revived_by_an_outage(
    directory: Directory, keys: ScriptedKeys, clock: Clock
) -> None:
    """A key that was seen revoked is not accepted when the store goes down after."""
    minted = keys.add()
    await directory.authenticate(minted.plaintext)
    keys.revoke(minted)
    clock.now += 2
    with pytest.raises(UnknownKey):
        await directory.authenticate(minted.plaintext)
    keys.failure = OSError("down")
    clock.now += 2
    with pytest.raises(DirectoryUnavailable):
        await directory.authenticate(minted.plaintext)


async def test_an_expired_key_is_refused_to_the_second(directory: Directory, keys: ScriptedKeys, clock: Clock) -> None:
    """A key ends at its expiry, also in memory and also in an outage."""
    minted = keys.add(expires_at=datetime.fromtimestamp(clock.now + 1, UTC))
    await directory.authenticate(minted.plaintext)
    clock.now += 0.99
    assert directory.lookup_fresh(minted.plaintext) is not None
    clock.now += 0.02
    assert directory.lookup_fresh(minted.plaintext) is None
    keys.failure = OSError("down")
    with pytest.raises(DirectoryUnavailable):
        await directory.authenticate(minted.plaintext)
    keys.failure = None
    with pytest.raises(UnknownKey):
        await directory.authenticate(minted.plaintext)


async def test_its_memories_are_bounded(directory: Directory, keys: ScriptedKeys) -> None:
    """However many keys come, known or not, only so many are remembered; the oldest go first."""
    minted = [keys.add() for _ in range(150)]
    for each in minted:
        await directory.authenticate(each.plaintext)
    for _ in range(150):
        with pytest.raises(UnknownKey):
            await directory.authenticate(mint_key(NEW).plaintext)
    assert len(directory._known) == 100
    assert len(directory._unknown_until) == 100
    assert directory.lookup_fresh(minted[0].plaintext) is None
    assert directory.lookup_fresh(minted[-1].plaintext) is not None


async def test_new_keys_share_a_query(directory: Directory, keys: ScriptedKeys) -> None:
    """Those that come at once are asked for at once, those that come meanwhile with the next query, and each gets its own answer."""
    minted = [keys.add(pepper) for pepper in (NEW, OLD) * 10]
    keys.gate.clear()
    waiting = [asyncio.create_task(directory.authenticate(each.plaintext)) for each in minted]
    stranger = asyncio.create_task(directory.authenticate(mint_key(NEW).plaintext))
    await asyncio.sleep(0.01)
    keys.gate.set()
    assert [caller.key_id for caller in await asyncio.gather(*waiting)] == [each.key_id for each in minted]
    with pytest.raises(UnknownKey):
        await stranger
    assert keys.lookups == 1


async def test_a_query_has_a_most(clock: Clock) -> None:
    """However many wait, no query asks for more digests than so many, and few run at once; whoever gave up is not asked for."""
    asked: list[int] = []
    running, most_running = 0, 0

    class Store:
        async def find_keys(self, digests: list[str]) -> list[StoredKey | None]:
            nonlocal running, most_running
            asked.append(len(digests))
            running += 1
            most_running = max(most_running, running)
            await asyncio.sleep(0.01)
            running -= 1
            return [None] * len(digests)

    directory = Directory(Store(), [NEW, OLD], clock)
    waiting = [asyncio.create_task(directory.authenticate(mint_key(NEW).plaintext)) for _ in range(2_000)]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(answer) for answer in answers} == {UnknownKey}
    assert (max(asked), sum(asked)) == (KEYS_OF_A_QUERY, 2 * 2_000)
    assert most_running == 4


async def test_a_query_that_hangs_holds_up_only_its_own(keys: ScriptedKeys, clock: Clock) -> None:
    """While one connection says nothing, new keys go with other queries; its own are told in the end that nobody knows."""
    hung = asyncio.Event()

    class Store:
        async def find_keys(self, digests: list[str]) -> list[StoredKey | None]:
            if digests == ["hangs"]:
                await hung.wait()
            return await keys.find_keys(digests)

    lookups, minted = KeyLookups(Store(), clock, patience_s=0.2), keys.add()
    hanging = asyncio.create_task(lookups.find(["hangs"]))
    await asyncio.sleep(0.01)
    for _ in range(10):
        assert (await lookups.find([minted.digest])).key == keys.keys[minted.digest]
    assert not hanging.done()
    with pytest.raises(TimeoutError):
        await hanging


async def test_lookups_at_once_are_bounded(directory: Directory, keys: ScriptedKeys) -> None:
    """More new keys than may wait at once are told to come again, not queued without end."""
    keys.gate.clear()
    waiting = [asyncio.create_task(directory.authenticate(keys.add().plaintext)) for _ in range(43)]
    await asyncio.sleep(0.01)
    keys.gate.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Caller"] * 40 + ["DirectoryUnavailable"] * 3
    await directory.aclose()


async def test_a_flood_of_strangers_leaves_places_for_known_keys(
    directory: Directory, keys: ScriptedKeys, clock: Clock
) -> None:
    """While unknown keys take all places that they may have, a known key is still read anew, and seen revoked."""
    minted = keys.add()
    await directory.authenticate(minted.plaintext)
    keys.revoke(minted)
    clock.now += 3
    keys.gate.clear()
    flood = [asyncio.create_task(directory.authenticate(mint_key(NEW).plaintext)) for _ in range(50)]
    await asyncio.sleep(0)
    known = asyncio.create_task(directory.authenticate(minted.plaintext))
    await asyncio.sleep(0)
    keys.gate.set()
    with pytest.raises(UnknownKey):
        await known
    refused = [type(answer).__name__ for answer in await asyncio.gather(*flood, return_exceptions=True)]
    assert refused.count("DirectoryUnavailable") == 50 - 40
    assert (await directory.authenticate(keys.add().plaintext)).team_id == "team_a"


async def test_it_reads_the_real_store(engine: AsyncEngine, clock: Clock) -> None:
    """A key made and revoked in the database is accepted and refused accordingly."""
    store = AccountStore(engine)
    await store.create_team("team_a", allowed_models=["gpt-4o"])
    minted = await store.create_key("team_a", "ci", NEW)
    directory = Directory(store, [NEW], clock)
    caller = await directory.authenticate(minted.plaintext)
    assert (caller.team_id, caller.allowed_models) == ("team_a", frozenset({"gpt-4o"}))
    await store.revoke_key(minted.key_id)
    clock.now += 2
    with pytest.raises(UnknownKey):
        await directory.authenticate(minted.plaintext)


class ManyKeys:
    """Looks many keys up at once in a scripted store, unless told to fail."""

    def __init__(self, keys: ScriptedKeys) -> None:
        self.keys = keys
        self.asked: list[list[str]] = []
        self.failure: Exception | None = None

    async def __call__(self, digests: list[str]) -> list[StoredKey | None]:
        self.asked.append(digests)
        if self.failure is not None:
            raise self.failure
        return [self.keys.keys.get(digest) for digest in digests]


async def test_keys_in_use_are_read_again_before_they_are_stale(
    directory: Directory, keys: ScriptedKeys, clock: Clock
) -> None:
    """Whoever asks again and again is looked up once; a refresh in time takes its place."""
    minted, many = keys.add(), ManyKeys(keys)
    await directory.authenticate(minted.plaintext)
    for _ in range(40):
        clock.now += 0.5
        await directory.refresh(many)
        assert directory.lookup_fresh(minted.plaintext) is not None
    assert keys.lookups == 1
    assert many.asked == [[minted.digest]] * 40


async def test_a_refresh_tells_what_was_changed_and_what_was_revoked(
    directory: Directory, keys: ScriptedKeys, clock: Clock
) -> None:
    """A team's new settings hold from the refresh on, and a revoked key is unknown from there on."""
    minted, revoked, many = keys.add(), keys.add(), ManyKeys(keys)
    for each in (minted, revoked):
        await directory.authenticate(each.plaintext)
    keys.keys[minted.digest] = msgspec.structs.replace(keys.keys[minted.digest], role="admin")
    keys.revoke(revoked)
    clock.now += 0.5
    await directory.refresh(many)
    assert (await directory.authenticate(minted.plaintext)).role == "admin"
    with pytest.raises(UnknownKey):
        await directory.authenticate(revoked.plaintext)
    assert keys.lookups == 2


async def test_keys_that_nobody_uses_are_not_read_again(directory: Directory, keys: ScriptedKeys, clock: Clock) -> None:
    """The background reads what was presented within the time of an outage, and no more."""
    minted, many = keys.add(), ManyKeys(keys)
    await directory.authenticate(minted.plaintext)
    clock.now += 61
    await directory.refresh(many)
    assert many.asked == []


async def test_a_key_that_is_not_known_yet_waits_for_a_store_that_comes_back(
    directory: Directory, keys: ScriptedKeys
) -> None:
    """It has no earlier answer to fall back on: a database that restarts costs it a wait."""
    minted = keys.add()
    keys.failing = 3
    assert (await directory.authenticate(minted.plaintext)).key_id == minted.key_id


async def test_known_keys_wait_for_nothing_while_the_store_is_silent(
    directory: Directory, keys: ScriptedKeys, clock: Clock
) -> None:
    """Once a refresh has failed, stale keys are answered from memory at once, without a look-up of their own."""
    minted, many = keys.add(), ManyKeys(keys)
    await directory.authenticate(minted.plaintext)
    many.failure = OSError("gone")
    for _ in range(10):
        clock.now += 3
        await directory.refresh(many)
        assert (await directory.authenticate(minted.plaintext)).team_id == "team_a"
    assert keys.lookups == 1
    clock.now += 61
    keys.failure = OSError("gone")
    with pytest.raises(DirectoryUnavailable):
        await directory.authenticate(minted.plaintext)


async def test_a_refresh_does_not_undo_a_newer_answer(directory: Directory, keys: ScriptedKeys, clock: Clock) -> None:
    """What was looked up after the refresh had asked is newer than the refresh's answer."""
    minted = keys.add()
    await directory.authenticate(minted.plaintext)

    async def late(digests: list[str]) -> list[StoredKey | None]:
        before = [keys.keys.get(digest) for digest in digests]
        clock.now += 5
        keys.revoke(minted)
        with pytest.raises(UnknownKey):
            await directory.authenticate(minted.plaintext)
        return before

    await directory.refresh(late)
    assert directory.lookup_fresh(minted.plaintext) is None


async def test_many_keys_are_read_by_few_queries(directory: Directory, keys: ScriptedKeys, engine: AsyncEngine) -> None:
    """A refresh asks for so many keys at once, and the real store answers in the order of the question."""
    minted, many = [keys.add() for _ in range(5)], ManyKeys(keys)
    for each in minted:
        await directory.authenticate(each.plaintext)
    await directory.refresh(many, at_once=2)
    assert [len(each) for each in many.asked] == [2, 2, 1]
    store = AccountStore(engine)
    await store.create_team("team_z", name="Z")
    one, two = [await store.create_key("team_z", name, NEW) for name in ("one", "two")]
    found = await store.find_keys([two.digest, "0" * 64, one.digest])
    assert [each and each.name for each in found] == ["two", None, "one"]
