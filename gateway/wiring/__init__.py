"""The parts of one process, each built from its section of the configuration."""
