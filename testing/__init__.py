"""Doubles of what the gateway calls, for tests, benchmarks, the demo and `kind: scripted`; nothing that serves callers needs them.

    upstream = ScriptedUpstream(Script(tokens=3))  # testing.scripted.upstream

or, over a socket:

    python -m testing.scripted.server --port 9000 --log seen.jsonl
"""
