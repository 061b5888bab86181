"""Who is calling: organisations, teams and API keys."""
