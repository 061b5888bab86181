"""The documentation's site as `make site` made it. `make test-site` opens it; `make test` does not."""

import os

# The site is made by what has an environment of its own.
collect_ignore_glob = [] if os.environ.get("WB_SITE") else ["test_*.py"]
