"""The audit log: every administrative change with its actor, as a hash chain."""
