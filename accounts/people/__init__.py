"""Who signs in: people, passwords, sessions, one-time links and locks."""
