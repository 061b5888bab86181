"""Failures of the batch tier, each with the status and code that callers see."""

from typing import Final

from proxy.errors import Fault, Refused

_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"


class StoreUnusable(Exception):
    """The store of files that is configured cannot be used as this gateway is installed; it does not start."""


class FileNotFound(Refused):
    """No such file, or another team's: the two must look the same."""

    fault = Fault(404, _INVALID, "file_not_found")


class FileInUse(Refused):
    """The file cannot be deleted while a batch reads it."""

    fault = Fault(409, _INVALID, "file_in_use")


class FileTooLarge(Refused):
    """The file, or all files of the team together, would be larger than the limit."""

    fault = Fault(413, _INVALID, "file_too_large")


class StorageUnavailable(Refused):
    """The file cannot be written or read now: the disk is full, or does not answer. Nothing half-made stays."""

    fault = Fault(503, _SERVER, "storage_unavailable")


class RangeNotSatisfiable(Refused):
    """The range that was asked for is not in the file."""

    fault = Fault(416, _INVALID, "range_not_satisfiable")


class BatchNotFound(Refused):
    """No such batch, or another team's: the two must look the same."""

    fault = Fault(404, _INVALID, "batch_not_found")


class BatchEnded(Refused):
    """The batch has ended already, or is about to, so it cannot be cancelled."""

    fault = Fault(409, _INVALID, "batch_ended")


class BatchTooDear(Refused):
    """A hard budget has no room for the whole batch."""

    fault = Fault(402, "insufficient_quota", "budget_exceeded")


class TooMuchQueued(Refused):
    """The team's batches have too many tokens waiting."""

    fault = Fault(429, "tokens", "token_limit_exceeded")


class BatchOff(Refused):
    """The batch tier is turned off here."""

    fault = Fault(404, _INVALID, "batch_off")


class BatchUnavailable(Refused):
    """The database of the batch tier does not answer."""

    fault = Fault(503, _SERVER, "batch_unavailable")
