"""A team's policy: its page with the preview, its API, and its changes."""
