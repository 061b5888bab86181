"""What runs: processes, wiring, the configuration file, the command line, the demo and the migrations."""
