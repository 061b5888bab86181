"""One file plus the environment: reading, checking, explaining what is wrong, reloading."""
