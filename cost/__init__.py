"""What was used, what it cost, and what it would have cost: usage, prices, the ledger."""
