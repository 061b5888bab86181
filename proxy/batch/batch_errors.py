"""Failures of the batch tier, each with the status and code that callers see."""

from cost.errors import BudgetExceeded
from proxy.errors import Refused, code_of


class FileNotFound(Refused, status=404, code="file_not_found"):
    """No such file, or another team's: the two must look the same."""


class FileInUse(Refused, status=409, code="file_in_use"):
    """The file cannot be deleted while a batch reads it."""


class FileTooLarge(Refused, status=413, code="file_too_large"):
    """The file, or all files of the team together, would be larger than the limit."""


class StorageUnavailable(Refused, status=503, code="storage_unavailable"):
    """The file cannot be written or read now: the disk is full, or does not answer. Nothing half-made stays."""


class RangeNotSatisfiable(Refused, status=416, code="range_not_satisfiable"):
    """The range that was asked for is not in the file."""


class BatchNotFound(Refused, status=404, code="batch_not_found"):
    """No such batch, or another team's: the two must look the same."""


class BatchEnded(Refused, status=409, code="batch_ended"):
    """The batch has ended already, or is about to, so it cannot be cancelled."""


class BatchTooDear(Refused, status=402, code=code_of(BudgetExceeded)):
    """A hard budget has no room for the whole batch."""


class TooMuchQueued(Refused, status=429, code="token_limit_exceeded", error_type="tokens"):
    """The team's batches have too many tokens waiting."""


class BatchOff(Refused, status=404, code="batch_off"):
    """The batch tier is turned off here."""


class BatchUnavailable(Refused, status=503, code="batch_unavailable"):
    """The database of the batch tier does not answer."""
