"""Rate limits: their API, their form fields, and how they are changed."""
