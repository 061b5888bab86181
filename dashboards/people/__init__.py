"""People of an organisation and members of teams: pages, API, and changes."""
