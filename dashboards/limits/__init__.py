"""Rate limits: their API, their form fields, and their changes."""
