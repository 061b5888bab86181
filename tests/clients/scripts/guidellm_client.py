"""GuideLLM, which measures servers: it looks for its model in the list, and streams what it sends, as chat and as a text's completion."""

import json
import os
import subprocess
import sys
from pathlib import Path

_REQUESTS = 3


def measured(route: str) -> list[int]:
    """How many requests came back whole, and with how many tokens, in a benchmark of this kind."""
    report = Path(f"{route}.json")
    options = {
        "target": os.environ["WEIGHBRIDGE_URL"],
        "model": "auto",
        "data": "prompts.jsonl",
        "rate-type": "synchronous",
        "max-requests": str(_REQUESTS),
        "output-path": str(report),
    }
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    settings = {"GUIDELLM__PREFERRED_ROUTE": route, "GUIDELLM__OPENAI__API_KEY": os.environ["WEIGHBRIDGE_KEY"]}
    command = [sys.executable, "-m", "guidellm", "benchmark", "run", *given, "--disable-progress"]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:] + done.stdout[-2_000:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    found = benchmark["requests"]["successful"]
    return [len(found), sum(each["output_tokens"] for each in found)]


def main() -> None:
    """Prints what came."""
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": f"hi {number}"}) + "\n" for number in range(9)))
    print(json.dumps({route: measured(route) for route in ("text_completions", "chat_completions")}))


main()
