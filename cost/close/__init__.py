"""Month-end close: the checklist, the check of the roll-ups against the ledger, and the statement."""
