"""The configuration: one file and the environment - reading, validating, explaining errors, reloading."""
