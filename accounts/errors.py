"""Errors of accounts and keys. No message ever holds a key or a part of its secret."""


class AccountsError(Exception):
    """The root of this folder's errors."""


class MalformedKey(AccountsError):
    """The presented text cannot be a key: wrong shape, or its checksum does not fit."""


class UnknownKey(AccountsError):
    """No valid key is known under the presented text: never made, revoked or expired."""


class KeyBlocked(UnknownKey):
    """The key, or its whole team, is blocked for now."""


class DirectoryUnavailable(AccountsError):
    """Nobody can say whether the key is valid, because the database does not answer. Not the caller's fault."""


class BadId(AccountsError):
    """An id has characters or a length that ids may not have."""


class BadName(AccountsError):
    """A name is empty or too long."""


class OrganisationExists(AccountsError):
    """An organisation with this id is there already."""


class UnknownOrganisation(AccountsError):
    """No organisation has this id."""


class TeamExists(AccountsError):
    """A team with this id is there already."""


class UnknownTeam(AccountsError):
    """No team has this id."""


class BadSetting(AccountsError):
    """A team's setting has a value that it may not have."""


class UnknownKeyId(AccountsError):
    """No key has this public id."""


class KeyExists(AccountsError):
    """A key that is to be imported is known here already."""


class UnusablePepper(AccountsError):
    """A pepper is too short, or two peppers carry the same id, or there is none."""
