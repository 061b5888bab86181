"""APIs of the self-hosted fleet: state, registration, drains and prompt prefixes."""
