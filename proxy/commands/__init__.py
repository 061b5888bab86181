"""Commands of the command line that have a file of their own; `proxy/cli.py` registers them."""
