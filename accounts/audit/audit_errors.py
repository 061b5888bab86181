"""What can go wrong with the audit log."""

from accounts.errors import AccountsError


class AuditError(AccountsError):
    """The root of this folder's errors."""


class AuditHeadMissing(AuditError):
    """The row that says which entry is the last is gone: somebody took it away, or the schema is not migrated."""


class BadExport(AuditError):
    """A file is not what `weighbridge audit export` writes."""


class BadAnchor(AuditError):
    """A number and hash to hold the log against are not of that shape."""
