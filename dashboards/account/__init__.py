"""The signed-in person's own account: password and sessions."""
