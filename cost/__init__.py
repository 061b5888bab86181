"""Usage, prices and the ledger: tokens used, their cost, and the baseline cost of the same tokens elsewhere."""
