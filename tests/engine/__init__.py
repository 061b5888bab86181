"""Stories with the demo's engine, which needs its weights and seconds for each answer: `make test-engine`."""
