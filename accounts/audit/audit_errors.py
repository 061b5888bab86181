"""Errors of the audit log."""

from accounts.errors import AccountsError


class AuditError(AccountsError):
    """The root of this folder's errors."""


class AuditHeadMissing(AuditError):
    """The head's row, which names the last entry, is gone: it was deleted, or the schema is not migrated."""


class BadExport(AuditError):
    """A file is not what `weighbridge audit export` writes."""


class BadAnchor(AuditError):
    """An anchor is not of the shape `number:hash`."""
