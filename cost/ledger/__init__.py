"""The ledger: entries, the journal they pass through, the roll-ups, and the check that both agree."""
