"""The audit log: who changed what, as a hash chain."""
