"""Definitions of the Grafana dashboards; `python -m dashboards.monitoring.boards` writes the JSON files beside it.

The JSON files are what people import. They are generated, so that a panel is two lines and not eighty.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

FOLDER: Final = Path(__file__).parent / "grafana"
_SCHEMA: Final = 39
"""Dashboard schema version of Grafana 10 and later."""
_WIDTH: Final = 24
_RATE: Final = "$__rate_interval"
Unit = Literal["reqps", "s", "percentunit", "short", "currencyUSD", "bool", "none", "tps"]


class Query(msgspec.Struct, frozen=True):
    """One PromQL expression, and the legend of its series."""

    expression: str
    legend: str = ""


class Panel(msgspec.Struct, frozen=True):
    """A time series, or with `stat` a single figure, of one expression and of those in `more`."""

    title: str
    about: str
    unit: Unit
    expression: str
    legend: str = ""
    more: Sequence[Query] = ()
    width: int = 8
    height: int = 7
    stat: bool = False
    stacked: bool = False
    limit: float | None = None
    """Value from which the panel is red."""


class Board(msgspec.Struct, frozen=True):
    """One dashboard: panels by the heading above them. `variables` are labels to filter by: name, and a metric that has it."""

    uid: str
    title: str
    about: str
    rows: Mapping[str, Sequence[Panel]]
    variables: Sequence[tuple[str, str]] = ()


def _rate(metric: str, labels: str = "", by: str = "") -> str:
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({metric}{{{labels}}}[{_RATE}]))"


def _quantile(share: float, metric: str, by: str = "", labels: str = "") -> str:
    grouped = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({grouped}) (rate({metric}_bucket{{{labels}}}[{_RATE}])))"


_TIER: Final = 'tier=~"$tier"'
# Two lines for a panel: what people read, and what is asked.
# fmt: off
GATEWAY: Final = Board(
    "weighbridge-gateway",
    "Weighbridge: gateway",
    "Requests, first tokens, failures, breakers, queues and limits.",
    {
        "At a glance": [
            Panel("Available (interactive)", "Interactive requests that did not end with a 5xx, in the last hour. The promise is 99.9 %.", "percentunit",
                  ('1 - sum(rate(weighbridge_requests_total{tier="interactive", status=~"5.."}[1h])) '
                    '/ sum(rate(weighbridge_requests_total{tier="interactive"}[1h]))'),
                  width=6, height=4, stat=True),
            Panel("First token, 90 % within (interactive)", "In the last quarter of an hour. The promise is one second.", "s",
                  "histogram_quantile(0.9, sum by (le) " '(rate(weighbridge_ttft_seconds_bucket{tier="interactive"}[15m])))',
                  width=6, height=4, stat=True, limit=1),
            Panel("In flight", "Requests being served now.", "short",
                  "sum(weighbridge_in_flight_requests)", width=6, height=4, stat=True),
            Panel("Breakers open", "Deployments that get no requests because they failed.", "short",
                  "count(max by (deployment) (weighbridge_breaker_state) == 2) or vector(0)",
                  width=6, height=4, stat=True, limit=1),
        ],
        "Requests": [
            Panel("Requests by status", "As callers saw them; 499: the caller hung up.", "reqps",
                  _rate("weighbridge_requests_total", _TIER, "status"), "{{status}}", stacked=True),
            Panel("Requests by model", "Answers by target.", "reqps",
                  _rate("weighbridge_requests_total", _TIER, "target"), "{{target}}", stacked=True),
            Panel("Refusals by reason", "Requests that ended with an error, by the code that callers read.", "reqps",
                  _rate("weighbridge_refusals_total", "", "code"), "{{code}}", stacked=True),
            Panel("Refusals by team", "Errors by team, so that a flood shows at a look. `none`: refused before the key was known.", "reqps",
                  "topk(10, " + _rate("weighbridge_refusals_total", "", "team") + ")", "{{team}}", stacked=True),
            Panel("Time to the first token", "By model.", "s",
                  _quantile(0.5, "weighbridge_ttft_seconds", "target", _TIER), "{{target}} half",
                  more=[Query(_quantile(0.9, "weighbridge_ttft_seconds", "target", _TIER), "{{target}} 90 %")], limit=1),
            Panel("Time for each further token", "The mean of each request; nine of ten are quicker.", "s",
                  _quantile(0.9, "weighbridge_inter_token_seconds", "target", _TIER), "{{target}} 90 %"),
            Panel("Whole requests", "From the first byte in to the last byte out.", "s",
                  _quantile(0.9, "weighbridge_request_duration_seconds", "target", _TIER), "{{target}} 90 %"),
        ],
        "Upstreams": [
            Panel("Attempts that failed", "By deployment and how they ended.", "reqps",
                  _rate("weighbridge_attempts_total", 'result!="ok"', "deployment, result"), "{{deployment}} {{result}}",
                  stacked=True),
            Panel("What the guard found", "In requests and in answers, and what was done.", "reqps",
                  _rate("weighbridge_guard_findings_total", "", "kind, action, side"), "{{kind}}: {{action}} ({{side}})", stacked=True),
            Panel("Incidents", "Open ones, as the operators' pages list them; on several hosts those of the one that sees most.", "short",
                  "max by (severity) (weighbridge_incidents)", "{{severity}}", limit=1),
            Panel("States", "The worst of callable, failing, slow and saturated: 0 well, 1 a warning, 2 grave.", "none",
                  "max by (target) (weighbridge_target_state)", "{{target}}",
                  more=[Query("max by (pool) (weighbridge_pool_state)", "pool {{pool}}")], limit=2),
            Panel("Breakers", "0 closed, 1 half-open, 2 open, 3 set aside for its provider's pace.", "none",
                  "max by (deployment) (weighbridge_breaker_state)", "{{deployment}}"),
            Panel("Fallbacks and escalations", "Requests that moved on after a failure (→), weak answers that were asked again (⇑), and those that two cheap models were asked for.", "reqps",
                  _rate("weighbridge_fallbacks_total", "", "from_target, to_target"), "{{from_target}} → {{to_target}}",
                  more=[Query(_rate("weighbridge_escalations_total", "", "from_target, to_target"), "{{from_target}} ⇑ {{to_target}}"),
                        Query(_rate("weighbridge_agreements_total", "", "target, result"), "{{target}}: two {{result}}")]),
        ],
        "Queues and limits": [
            Panel("Waiting", "Requests that wait for their turn before our own models.", "short",
                  "sum by (queue) (weighbridge_queue_waiting)", "{{queue}}"),
            Panel("Queue fill", "Tokens in flight, as a part of what the replicas hold.", "percentunit",
                  "sum by (queue) (weighbridge_queue_in_flight_tokens) / sum by (queue) (weighbridge_queue_capacity_tokens)", "{{queue}}",
                  limit=0.95),
            Panel("Wait", "Nine of ten waited less.", "s",
                  _quantile(0.9, "weighbridge_queue_wait_seconds", "queue, tier"), "{{queue}} {{tier}} 90 %"),
            Panel("Refused by queues", "Requests that overflowed to another model count, too.", "reqps",
                  _rate("weighbridge_queue_refusals_total", "", "queue, why"), "{{queue}} {{why}}", stacked=True),
            Panel("Refused by limits", "429, by whose limit and of what.", "reqps",
                  _rate("weighbridge_limits_refused_total", "", "scope, kind"), "{{scope}} {{kind}}", stacked=True),
            Panel("Idempotent requests", "Requests with an Idempotency-Key, and what became of them.", "reqps",
                  _rate("weighbridge_idempotent_requests_total", "", "event"), "{{event}}"),
            Panel("Answer cache", "Requests by what the answer cache had for them.", "reqps",
                  _rate("weighbridge_cache_requests_total", "", "result"), "{{result}}",
                  more=[Query(_rate("weighbridge_cache_evictions_total"), "given up for newer ones")]),
            Panel("Kept answers", "Bytes of answers that were kept a second.", "short", _rate("weighbridge_cache_stored_bytes_total"), "kept"),
            Panel("Answers in processes", "Bytes of answers that processes without Redis hold.", "short", "sum(weighbridge_cache_bytes)", "held"),
        ],
        "Batches": [
            Panel("Lines of batches", "Answered, failed, begun again, and lost to another process; and what became of lines that a provider's batch API was handed.", "reqps",
                  _rate("weighbridge_batch_lines_total", "", "outcome"), "{{outcome}}",
                  more=[Query(_rate("weighbridge_batch_handed_lines_total", "", "outcome"), "at a provider: {{outcome}}")]),
            Panel("Least time to spare", "Of any batch with a deadline; below 0 it will be late at this speed.", "s",
                  "min(weighbridge_batch_least_laxity_seconds)", "slack"),
            Panel("Batch tokens a second", "The measured speed, and how far estimates of completion were off, as a part of the time taken.", "tps",
                  "max(weighbridge_batch_tokens_per_second)", "speed",
                  more=[Query("histogram_quantile(0.9, sum by (le) (rate(weighbridge_batch_estimate_error_ratio_bucket[$__rate_interval])))", "error of estimates, 90 %")]),
            Panel("Work of batches", "Batches in progress, and what is left of them.", "short",
                  "max(weighbridge_batches_in_progress)", "batches",
                  more=[Query("max(weighbridge_batch_lines_left)", "lines"),
                        Query("max(weighbridge_batch_tokens_left)", "tokens")]),
            Panel("Batches that ended", "By how they ended.", "reqps",
                  _rate("weighbridge_batches_ended_total", "", "event"), "{{event}}"),
        ],
        "The process": [
            Panel("Event loop late by", "Above server.max_lag_s a worker refuses some requests.", "s",
                  "max(weighbridge_loop_lag_seconds)", "worst worker", limit=0.25),
            Panel("Refused for overload", "Requests that a worker had no time for.", "reqps",
                  "sum(rate(weighbridge_overload_refusals_total[$__rate_interval]))", "503 at the door"),
            Panel("Redis", "Calls in seconds; up and shared are 1 or 0. Without a Redis both stay 0.", "none",
                  _quantile(0.99, "weighbridge_redis_call_seconds"), "99 % of calls within",
                  more=[Query("min(weighbridge_redis_up)", "up"),
                        Query("min(weighbridge_limits_shared)", "limits shared")]),
            Panel("Redis failures", "Calls that failed or were slow.", "reqps",
                  _rate("weighbridge_redis_failures_total", "", "kind"), "{{kind}}"),
            Panel("Plug-ins", "Calls that were not ok; out is 1 while a plug-in is taken out.", "reqps",
                  _rate("weighbridge_plugin_calls_total", 'result!="ok"', "plugin, result"), "{{plugin}} {{result}}",
                  more=[Query("max by (plugin) (weighbridge_plugin_out)", "{{plugin}} out"),
                        Query("sum by (plugin) (rate(weighbridge_plugin_seconds_total[$__rate_interval]))", "{{plugin}} seconds")]),
            Panel("Refused keys of providers", "Calls whose key, read from a file, was refused; hours is the age of the key in use.", "none",
                  _rate("weighbridge_provider_key_refusals_total", "", "key"), "{{key}} refused",
                  more=[Query("(time() - max by (file, key) (weighbridge_provider_key_read_seconds)) / 3600", "{{file}} {{key}} hours")]),
            Panel("Exporters", "Finished requests by what became of them on their way out.", "reqps",
                  _rate("weighbridge_exported_total", "", "plugin, result"), "{{plugin}} {{result}}"),
            Panel("Journal", "Ledger entries that are not in the database yet. It grows while the database is away; nothing is lost.", "short",
                  "sum(weighbridge_journal_depth)", "entries"),
            Panel("Oldest entry that waits", "Seconds that it has waited for the database. Above a minute somebody should look.", "s",
                  "max(weighbridge_journal_oldest_seconds)", "oldest"),
            Panel("Trouble of the books", "Faults between journals and the database, and writes that the disk refused.", "reqps",
                  _rate("weighbridge_ledger_drain_total", "", "event"), "{{event}}",
                  more=[Query("sum(rate(weighbridge_journal_write_failures_total[$__rate_interval]))", "disk refused")]),
            Panel("Classifier", "Seconds to classify a prompt.", "s",
                  _quantile(0.99, "weighbridge_classifier_seconds", "source"), "{{source}} 99 %"),
        ],
    },
    (("tier", "weighbridge_requests_total"),),
)
# fmt: on

_TEAM: Final = 'team=~"$team"'
# fmt: off
MONEY: Final = Board(
    "weighbridge-money",
    "Weighbridge: money",
    "Spending and savings at a look. The ledger is the truth: /dashboard/finance and /v1/savings have it.",
    {
        "Spending": [
            Panel("Cost an hour, by team", "At the planned rate for our own GPUs, without idle time.", "currencyUSD",
                  f"3600 * {_rate('weighbridge_cost_usd_total', _TEAM, 'team')}", "{{team}}", width=12, stacked=True),
            Panel("Cost an hour, by model", "The same money.", "currencyUSD",
                  f"3600 * {_rate('weighbridge_cost_usd_total', _TEAM, 'target')}", "{{target}}", width=12, stacked=True),
            Panel("Saved against the baseline model", "The promise is 40 %, with idle GPUs counted; this graph does not count them.", "percentunit",
                  (f"1 - {_rate('weighbridge_cost_usd_total', _TEAM, 'team')} "
                    f"/ {_rate('weighbridge_baseline_usd_total', _TEAM, 'team')}"), "{{team}}", width=12),
            Panel("Unpriced answers", "Their cost is unknown and not in any total. Enter a price.", "reqps",
                  _rate("weighbridge_unpriced_requests_total", _TEAM, "target"), "{{target}}", width=12, limit=0.000001),
            Panel("Counts without a meter", "What providers count and the price book does not know; the log names it.", "short",
                  f"3600 * {_rate('weighbridge_unknown_usage_details_total', '', 'target')}", "{{target}}", width=12, limit=0.000001),
            Panel("Disputed an hour", "What providers told beyond the possible. It is not booked: ask them.", "currencyUSD",
                  f"3600 * {_rate('weighbridge_disputed_usd_total', '', 'target')}", "{{target}}", width=12, limit=0.000001),
        ],
        "Tokens": [
            Panel("Tokens", "Tokens a second; cached ones are a part of the input.", "tps",
                  _rate("weighbridge_tokens_total", _TEAM, "direction"), "{{direction}}", width=12),
            Panel("Prompt tokens found in a cache", "A share of all prompt tokens.", "percentunit",
                  _rate("weighbridge_tokens_total", f'{_TEAM}, direction="cached_input"', "team") + " / " + _rate("weighbridge_tokens_total", f'{_TEAM}, direction="input"', "team"), "{{team}}",
                  width=12),
        ],
        "Budgets and books": [
            Panel("Budgets used", "Of each budget's limit in its period.", "percentunit",
                  "max by (budget_id) (weighbridge_budget_spent_usd) / max by (budget_id) (weighbridge_budget_limit_usd)", "{{budget_id}}",
                  limit=0.9),
            Panel("Refused by budgets", "Times that a hard budget had no room.", "reqps",
                  _rate("weighbridge_budget_refusals_total", "", "scope"), "{{scope}}"),
            Panel("Roll-ups that differ from the ledger", "Must be 0.", "short",
                  "max(weighbridge_ledger_differences)", "figures", limit=1),
            Panel("Since the last check of the books", "It happens each hour.", "s",
                  "time() - max(weighbridge_ledger_verified_timestamp_seconds)", "age", limit=10_800),
            Panel("Webhooks", "Tries to deliver warnings and reports.", "reqps",
                  _rate("weighbridge_webhooks_total", "", "result"), "{{result}}"),
            Panel("Events wait", "How long the oldest event waits that a sink has not acknowledged.", "s",
                  "max by (sink) (weighbridge_event_lag_seconds)", "{{sink}}", limit=900),
            Panel("Events told", "And batches that a sink did not take.", "reqps",
                  _rate("weighbridge_events_total", "", "sink, result"), "{{sink}} {{result}}",
                  more=(Query(_rate("weighbridge_event_failures_total", "", "sink"), "{{sink}} failed"),)),
            Panel("Verdicts on answers", "Verdicts of people and of signals.", "reqps",
                  _rate("weighbridge_verdicts_total", "", "source, signal"), "{{source}} {{signal}}"),
        ],
    },
    (("team", "weighbridge_requests_total"),),
)
# fmt: on

_POOL: Final = 'pool=~"$pool"'
_INTERACTIVE: Final = f'{_POOL}, tier="interactive"'
_UP: Final = (
    f'(count by (pool) (max by (pool, replica) (weighbridge_replica_state{{{_POOL}, state!="down"}}) == 1) '
    f"unless on (pool) (max by (pool) (weighbridge_pool_awake{{{_POOL}}}) == 0))"
)
"""Replicas that are up, and so cost something; none of a pool that sleeps, whose GPUs are another's."""
_GPUS: Final = f"({_UP} * on (pool) max by (pool) (weighbridge_pool_gpus_per_replica))"
_TOKENS: Final = f"sum by (pool) (max by (pool, replica) (weighbridge_replica_tokens_per_second{{{_POOL}}}))"
_RUNS: Final = f"on (pool, replica) group_left (version) (max by (pool, replica, version) (weighbridge_replica_version{{{_POOL}}}) == 1)"
"""Joins a replica's figure with the version that it says it runs."""
_VERSION_UP: Final = f'count by (pool, version) ((max by (pool, replica) (weighbridge_replica_state{{{_POOL}, state!="down"}}) == 1) * {_RUNS})'
_VERSION_TOKENS: Final = (
    f"sum by (pool, version) (max by (pool, replica) (weighbridge_replica_tokens_per_second{{{_POOL}}}) * {_RUNS})"
)
# fmt: off
FLEET: Final = Board(
    "weighbridge-fleet",
    "Weighbridge: our own engines",
    "Pools, replicas, caches, the balancer and the scaler.",
    {
        "Pools": [
            Panel("Replicas by state", "As this gateway sees them.", "short",
                  f"sum by (pool, state) (max by (pool, replica, state) (weighbridge_replica_state{{{_POOL}}}))", "{{pool}} {{state}}",
                  stacked=True),
            Panel("Desired replicas", "The scaler's wish; KEDA reads it.", "short",
                  f"max by (pool) (weighbridge_pool_desired_replicas{{{_POOL}}})", "{{pool}}"),
            Panel("Awake on shared GPUs", "One pool of those that share GPUs at a time; none during a switch.", "short",
                  f"max by (gpus, pool) (weighbridge_pool_awake{{{_POOL}}})", "{{gpus}} {{pool}}"),
            Panel("Time of a switch on shared GPUs, 95 % within", "Until the pool was awake, the other one's drain included.", "s",
                  _quantile(0.95, "weighbridge_pool_switch_seconds", "gpus, pool", _POOL), "{{gpus}} {{pool}}"),
            Panel("Prompt tokens found in caches", "By the engines' own counters.", "percentunit",
                  f"max by (pool) (weighbridge_pool_prefix_hit_rate{{{_POOL}}})", "{{pool}}"),
            Panel("Scale decisions", "Rules that decided the number of replicas.", "reqps",
                  _rate("weighbridge_scale_decisions_total", _POOL, "pool, reason"), "{{pool}} {{reason}}"),
            Panel("Reasons for the replica", "prefix: it is cached there.", "reqps",
                  _rate("weighbridge_balancer_choices_total", _POOL, "pool, why"), "{{pool}} {{why}}", stacked=True),
            Panel("Messages of other hosts", "heard: counted here as their own; other_pepper, other_hashes: the log says what differs.", "reqps",
                  _rate("weighbridge_hosts_news_total", "", "result"), "{{result}}"),
            Panel("Prompts read by replicas that only read", "failed: the answering replica read it itself. Only pools with `prefill`.", "reqps",
                  _rate("weighbridge_prompts_read_apart_total", _POOL, "pool, result"), "{{pool}} {{result}}"),
            Panel("Streams that another replica went on with", "Their own replica was lost in the middle, and their team wants them continued. All models.", "reqps",
                  _rate("weighbridge_continued_streams_total", "", "target, result"), "{{target}} {{result}}"),
            Panel("Nobody watched", "Seconds a second in which no process knew whether replicas were up.", "short",
                  _rate("weighbridge_pool_unwatched_seconds_total", _POOL, "pool"), "{{pool}}", limit=0.01),
        ],
        "Replicas": [
            Panel("KV cache in use", "Unknown while an engine does not tell.", "percentunit",
                  f"max by (pool, replica) (weighbridge_replica_kv_usage{{{_POOL}}})", "{{pool}}/{{replica}}", limit=0.95),
            Panel("Running", "Requests that the engine runs.", "short",
                  f"max by (pool, replica) (weighbridge_replica_running{{{_POOL}}})", "{{pool}}/{{replica}}"),
            Panel("Waiting in the engine", "Our own queues should wait instead.", "short",
                  f"max by (pool, replica) (weighbridge_replica_waiting{{{_POOL}}})", "{{pool}}/{{replica}}"),
            Panel("First token by version, 95 % and 99 % within (interactive)", "From sending a stream to a replica, without our own queue.", "s",
                  _quantile(0.95, "weighbridge_pool_ttft_seconds", "pool, version", _INTERACTIVE), "{{pool}} {{version}} p95",
                  more=[Query(_quantile(0.99, "weighbridge_pool_ttft_seconds", "pool, version", _INTERACTIVE), "{{pool}} {{version}} p99")], limit=1),
            Panel("Time for each further token by version, 99 % within (interactive)", "The mean of each request.", "s",
                  _quantile(0.99, "weighbridge_pool_inter_token_seconds", "pool, version", _INTERACTIVE), "{{pool}} {{version}}",
                  limit=0.1),
            Panel("Tokens a second by version", "Of replicas that say which version of their model they run.", "tps",
                  _VERSION_TOKENS, "{{pool}} {{version}}"),
        ],
        "Work and cost of the GPUs": [
            Panel("Tokens a second a GPU", "Prompt and completion tokens, by the engines' own counters.", "tps",
                  f"{_TOKENS} / {_GPUS}", "{{pool}}"),
            Panel("Tokens a second a GPU, by version", "Of replicas that say which version of their model they run.", "tps",
                  f"{_VERSION_TOKENS} / ({_VERSION_UP} * on (pool) group_left () max by (pool) (weighbridge_pool_gpus_per_replica))", "{{pool}} {{version}}"),
            Panel("Dollars a million tokens, by version", "At this throughput, the version's idle replicas included: a new one with a small share looks dear.", "currencyUSD",
                  (f"{_VERSION_UP} * on (pool) group_left () max by (pool) (weighbridge_pool_usd_per_replica_hour) "
                    f"/ (({_VERSION_TOKENS} > 0) * 3600) * 1e6"), "{{pool}} {{version}}"),
            Panel("Model FLOPs utilisation", "Operations of computed tokens over the data sheet's: an estimate without attention.", "percentunit",
                  (f"sum by (pool) (max by (pool, replica) (weighbridge_replica_computed_tokens_per_second{{{_POOL}}})) "
                    f"* on (pool) max by (pool) (weighbridge_pool_flops_per_token) / ({_UP} * on (pool) max by (pool) (weighbridge_pool_peak_flops))"), "{{pool}}"),
            Panel("Dollars a million tokens", "At this throughput, idle replicas included. Without cost.pools it is not known.", "currencyUSD",
                  f"{_UP} * on (pool) max by (pool) (weighbridge_pool_usd_per_replica_hour) / (({_TOKENS} > 0) * 3600) * 1e6", "{{pool}}"),
            Panel("Model FLOPs utilisation, by version", "Of replicas that say which version of their model they run.", "percentunit",
                  (f"sum by (pool, version) (max by (pool, replica) (weighbridge_replica_computed_tokens_per_second{{{_POOL}}}) * {_RUNS}) "
                    f"* on (pool) group_left () max by (pool) (weighbridge_pool_flops_per_token) "
                    f"/ ({_VERSION_UP} * on (pool) group_left () max by (pool) (weighbridge_pool_peak_flops))"), "{{pool}} {{version}}"),
            Panel("GPU utilisation", "The time in which a kernel ran, by DCGM. Busy is not the same as fast.", "percentunit",
                  f"max by (pool, replica) (weighbridge_replica_gpu_utilisation{{{_POOL}}})", "{{pool}}/{{replica}}"),
            Panel("GPU memory", "By DCGM; vLLM takes its share at the start.", "percentunit",
                  f"max by (pool, replica) (weighbridge_replica_gpu_memory{{{_POOL}}})", "{{pool}}/{{replica}}"),
            Panel("Preemptions", "Requests that lost their cache to others and are computed again.", "reqps",
                  f"max by (pool, replica) (weighbridge_replica_preemptions_per_second{{{_POOL}}})", "{{pool}}/{{replica}}"),
            Panel("First token in the engine, 95 % and 99 % within", "Scraped from vLLM itself, without our own queue.", "s",
                  _quantile(0.95, "vllm:time_to_first_token_seconds", "model_name"), "{{model_name}} p95",
                  more=[Query(_quantile(0.99, "vllm:time_to_first_token_seconds", "model_name"), "{{model_name}} p99")], limit=1),
            Panel("Time per output token, 99 % within", "Scraped from vLLM itself.", "s",
                  _quantile(0.99, "vllm:inter_token_latency_seconds", "model_name"), "{{model_name}}", limit=0.05),
        ],
        "Watching": [
            Panel("Readings of statistics that failed", "A stale reading means unknown, not idle.", "reqps",
                  _rate("weighbridge_scrapes_total", f'{_POOL}, result!="ok"', "pool, result"), "{{pool}} {{result}}"),
            Panel("Looks for replicas", "DNS, Kubernetes or registrations.", "reqps",
                  _rate("weighbridge_discovery_looks_total", _POOL, "pool, source, result"), "{{pool}} {{source}} {{result}}",
                  more=[Query(_rate("weighbridge_discovery_conflicts_total", _POOL, "pool, kind"), "{{pool}} conflict {{kind}}")]),
            Panel("Registrations, adapters, KV events", "Messages from and to engines.", "reqps",
                  _rate("weighbridge_registrations_total", _POOL, "pool, result"), "{{pool}} {{result}}",
                  more=[Query(_rate("weighbridge_adapter_loads_total", _POOL, "pool, result"), "{{pool}} adapter {{result}}"),
                        Query(_rate("weighbridge_kv_events_total", _POOL, "pool, result"), "{{pool}} events {{result}}")]),
        ],
    },
    (("pool", "weighbridge_replica_state"),),
)
# fmt: on
BOARDS: Final = (GATEWAY, MONEY, FLEET)


def written(board: Board) -> str:
    """Return the dashboard's JSON. It asks for the data source on import and names no installation."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    return json.dumps(
        {
            "__inputs": [],
            "__requires": [
                {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.0.0"},
                {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
            ],
            "uid": board.uid,
            "title": board.title,
            "description": board.about,
            "tags": ["weighbridge"],
            "editable": True,
            "graphTooltip": 1,
            "schemaVersion": _SCHEMA,
            "time": {"from": "now-6h", "to": "now"},
            "refresh": "30s",
            "timezone": "browser",
            "templating": {
                "list": [_DATASOURCE, *(_variable(name, metric, source) for name, metric in board.variables)]
            },
            "panels": list(_laid_out(board.rows, source)),
        },
        indent=1,
        ensure_ascii=False,
    )


_DATASOURCE: Final = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, metric: str, source: dict[str, str]) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": source,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(rows: Mapping[str, Sequence[Panel]], source: dict[str, str]) -> Iterable[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in rows.items():
        number += 1
        place = {"h": 1, "w": _WIDTH, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []}
        x, y, tallest = 0, y + 1, 0
        for panel in panels:
            if x + panel.width > _WIDTH:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            yield _panel(number, panel, x, y, source)
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def _panel(number: int, panel: Panel, x: int, y: int, source: dict[str, str]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
    custom = {} if panel.stat else {"fillOpacity": 25 if panel.stacked else 8, "stacking": {"mode": "normal" if panel.stacked else "none"}, "showPoints": "never"}  # fmt: skip
    return {
        "id": number,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}, "custom": custom},
            "overrides": [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": source,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for place, query in enumerate([Query(panel.expression, panel.legend), *panel.more])
        ],
    }


def main() -> None:
    """Write every dashboard's file."""
    for board in BOARDS:
        place = FOLDER / f"{board.uid}.json"
        place.write_text(written(board) + "\n")
        print(place.name)  # noqa: T201 - it is a command


if __name__ == "__main__":
    main()
