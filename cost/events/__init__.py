"""Events: each entry of the ledger that closes something, told to sinks outside at least once and in order."""
