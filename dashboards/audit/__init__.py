"""The audit log as a page, as an API and as a list."""
