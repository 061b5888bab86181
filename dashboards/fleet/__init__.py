"""Our own engines over HTTP: their state, registration, drains and prompt prefixes."""
