"""Everything that runs: processes, wiring, configuration file, command line, demo and migrations."""
