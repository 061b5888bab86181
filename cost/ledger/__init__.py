"""The ledger: its entries, the journal they pass through, the sums that follow from them, and proof that both agree."""
