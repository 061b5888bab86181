"""Errors of people and of signing in. No message holds a password, a token or a part of one."""

from accounts.errors import AccountsError
from accounts.people.person import Person

_MINUTE_S = 60


class UnknownPerson(AccountsError):
    """No such person, or another organisation's: the two must look the same."""


class PersonExists(AccountsError):
    """The e-mail address, or the OpenID subject, belongs to another person already."""


class BadEmail(AccountsError):
    """The text is no e-mail address that is accepted."""


class WeakPassword(AccountsError):
    """The password is too easy to guess, or too long."""


class WrongCredentials(AccountsError):
    """E-mail address and password do not match, or the person may not sign in; which of it is not told."""

    def __init__(self, *, locked: bool = False, person: Person | None = None) -> None:
        super().__init__("The e-mail address or the password is wrong.")
        self.locked = locked
        """True when this failure locked the account or the address; for the audit log."""
        self.person = person
        """The person whose account was tried; for the audit log, never for the answer."""


class Locked(AccountsError):
    """Too many failures: nobody can sign in to this account, or from this address, for a while."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"Too many failed sign-ins. Try again in {_duration(retry_after_s)}.")
        self.retry_after_s = retry_after_s


class SignInBusy(AccountsError):
    """More sign-ins are in progress than passwords can be verified."""

    retry_after_s = 2

    def __init__(self) -> None:
        super().__init__("Many people are signing in right now. Try again in a few seconds.")


class PasswordsOff(AccountsError):
    """`sign_in.passwords` is false."""

    def __init__(self) -> None:
        super().__init__("Signing in with a password is switched off here. Use one of the other ways to sign in.")


class LinkUnusable(AccountsError):
    """The link was used, has expired, was replaced by a newer one, or never existed."""

    def __init__(self) -> None:
        super().__init__(
            "This link was used already, is too old, or was replaced by a newer one. Ask an administrator for a new link."
        )


def _duration(seconds: int) -> str:
    if seconds < _MINUTE_S:
        return "one second" if seconds == 1 else f"{seconds} seconds"
    minutes = -(-seconds // _MINUTE_S)
    return "one minute" if minutes == 1 else f"{minutes} minutes"
