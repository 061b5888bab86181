"""Passwords: which are good enough, and how they are kept."""

import asyncio
import threading

import pytest

from accounts.people.passwords import MAX_CHARS, Passwords
from accounts.people.people_errors import SignInBusy, WeakPassword
from tests.accounts.people.cheap import CountingHasher

KNOWN = ("ada.lovelace@acme.test", "ada.lovelace", "acme", "Ada Lovelace", "Lovelace", "weighbridge")


async def test_a_hash_is_argon2id_as_owasp_recommends() -> None:
    """19 MiB, two passes, one lane, and a salt of its own each time."""
    passwords = Passwords(min_chars=12)
    first, second = await passwords.hash("seven quiet herons"), await passwords.hash("seven quiet herons")
    assert first.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert first != second
    assert await passwords.matches("seven quiet herons", first)
    assert not await passwords.matches("seven quiet heron", first)
    assert not passwords.is_weaker(first)


async def test_nobodys_password_matches_nothing() -> None:
    """Without a stored hash the work is done and the answer is no; so is it with a broken one."""
    hasher = CountingHasher()
    passwords = Passwords(min_chars=12, hasher=hasher)
    for guess in ("of nobody", "seven quiet herons", ""):
        assert not await passwords.matches(guess, None)
    assert len(hasher.verified) == 3
    assert not await passwords.matches("seven quiet herons", "not a hash")


async def test_a_password_typed_elsewhere_is_the_same() -> None:
    """A letter and its accent, typed as one or as two, are equal."""
    passwords = Passwords(min_chars=12, hasher=CountingHasher())
    assert await passwords.matches("cafe\u0301 in the morning", await passwords.hash("caf\u00e9 in the morning"))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("short", "at least 12"),
        ("x" * (MAX_CHARS + 1), "at most 256"),
        ("e\u0301" * 5_000, "at most 256"),
        ("aaaaaaaabbbb", "different"),
        ("Ada.Lovelace@acme.test1", "name, e-mail"),
        ("weighbridge1!", "name, e-mail"),
        ("lovelace2026", "name, e-mail"),
    ],
)
def test_a_weak_password_is_refused(bad: str, told: str) -> None:
    """The message says what to do, and never holds the password."""
    with pytest.raises(WeakPassword, match=told) as refused:
        Passwords(min_chars=12).check(bad, known=KNOWN)
    assert bad not in str(refused.value)


@pytest.mark.parametrize("good", ["seven quiet herons", "lovelace likes engines", "pass word with spaces "])
def test_a_good_password_is_taken(good: str) -> None:
    """Length is what counts; no rule asks for digits or signs."""
    Passwords(min_chars=12).check(good, known=KNOWN)


async def test_a_flood_waits_in_bounded_room() -> None:
    """Two are checked at a time, a few wait, and the next is refused at once; room comes back."""
    gate, running, most = threading.Event(), [0], [0]
    lock = threading.Lock()

    class Slow(CountingHasher):
        def hash(self, password: str) -> str:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            gate.wait(30)
            with lock:
                running[0] -= 1
            return super().hash(password)

    passwords = Passwords(min_chars=12, hasher=Slow(), waiting=3)
    waiting = [asyncio.ensure_future(passwords.hash(f"password {number}")) for number in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(SignInBusy):
        await passwords.hash("one more")
    # Whoever goes away leaves work behind that still takes its room.
    waiting[0].cancel()
    gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert most[0] <= 2
    assert await passwords.hash("another")
