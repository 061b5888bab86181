"""What can go wrong with the books."""


class LedgerUnavailable(Exception):
    """An attempt cannot be booked, so it must not be made: the journal is full, closed or cannot be written."""


class EntriesRefused(Exception):
    """The database answers, and will never take at least one of these entries as it is."""


class StoreUnreachable(Exception):
    """The database does not answer; what was to be written stays in the journal."""
