"""Reconciliation of a provider's exported usage and costs with the ledger, and the posting of the difference."""
