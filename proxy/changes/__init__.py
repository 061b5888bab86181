"""What people and administrators' keys change: one function for each thing, one transaction with its entry in the audit log."""
