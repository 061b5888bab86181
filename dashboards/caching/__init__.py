"""What caches gave a team, what was lost of them, and why."""
