"""A team's policy: its page with the preview, its API, and how it is changed."""
