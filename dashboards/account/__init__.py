"""One's own account: password and sessions."""
