"""Definitions of the Grafana dashboards; `python -m dashboards.monitoring.boards` writes the JSON files beside it.

The JSON files are what people import. They are generated, so that a panel is three lines and not eighty.
"""

import json
from collections.abc import Iterable, Sequence
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


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """A time series, or with `stat` a single figure."""

    title: str
    queries: Sequence[Query]
    about: str
    unit: Unit = "short"
    width: int = 8
    height: int = 7
    stat: bool = False
    stacked: bool = False
    limit: float | None = None
    """Value from which the panel is red."""


class Row(msgspec.Struct, frozen=True):
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


class Board(msgspec.Struct, frozen=True):
    """One dashboard. `variables` are labels to filter by: name, and a metric that has it."""

    uid: str
    title: str
    about: str
    rows: Sequence[Row]
    variables: Sequence[tuple[str, str]] = ()


def _rate(metric: str, labels: str = "", by: str = "") -> str:
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({metric}{{{labels}}}[{_RATE}]))"


def _quantile(share: float, metric: str, by: str = "", labels: str = "") -> str:
    grouped = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({grouped}) (rate({metric}_bucket{{{labels}}}[{_RATE}])))"


_TIER: Final = 'tier=~"$tier"'
GATEWAY: Final = Board(
    "weighbridge-gateway",
    "Weighbridge: gateway",
    "Requests, first tokens, failures, breakers, queues and limits.",
    (
        Row(
            "At a glance",
            (
                Panel(
                    title="Available (interactive)",
                    queries=[
                        Query(
                            '1 - sum(rate(weighbridge_requests_total{tier="interactive", status=~"5.."}[1h])) '
                            '/ sum(rate(weighbridge_requests_total{tier="interactive"}[1h]))'
                        )
                    ],
                    about="Interactive requests that did not end with a 5xx, in the last hour. The promise is 99.9 %.",
                    unit="percentunit",
                    width=6,
                    height=4,
                    stat=True,
                ),
                Panel(
                    title="First token, 90 % within (interactive)",
                    queries=[
                        Query(
                            "histogram_quantile(0.9, sum by (le) "
                            '(rate(weighbridge_ttft_seconds_bucket{tier="interactive"}[15m])))'
                        )
                    ],
                    about="In the last quarter of an hour. The promise is one second.",
                    unit="s",
                    width=6,
                    height=4,
                    stat=True,
                    limit=1,
                ),
                Panel(
                    title="In flight",
                    queries=[Query("sum(weighbridge_in_flight_requests)")],
                    about="Requests being served now.",
                    width=6,
                    height=4,
                    stat=True,
                ),
                Panel(
                    title="Breakers open",
                    queries=[Query("count(max by (deployment) (weighbridge_breaker_state) == 2) or vector(0)")],
                    about="Deployments that get no requests because they failed.",
                    width=6,
                    height=4,
                    stat=True,
                    limit=1,
                ),
            ),
        ),
        Row(
            "Requests",
            (
                Panel(
                    title="Requests by status",
                    queries=[Query(_rate("weighbridge_requests_total", _TIER, "status"), "{{status}}")],
                    about="As callers saw them; 499: the caller hung up.",
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Requests by model",
                    queries=[Query(_rate("weighbridge_requests_total", _TIER, "target"), "{{target}}")],
                    about="Answers by target.",
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Refusals by reason",
                    queries=[Query(_rate("weighbridge_refusals_total", "", "code"), "{{code}}")],
                    about="Requests that ended with an error, by the code that callers read.",
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Refusals by team",
                    queries=[Query("topk(10, " + _rate("weighbridge_refusals_total", "", "team") + ")", "{{team}}")],
                    about="Errors by team, so that a flood shows at a look. `none`: refused before the key was known.",
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Time to the first token",
                    queries=[
                        Query(_quantile(0.5, "weighbridge_ttft_seconds", "target", _TIER), "{{target}} half"),
                        Query(_quantile(0.9, "weighbridge_ttft_seconds", "target", _TIER), "{{target}} 90 %"),
                    ],
                    about="By model.",
                    unit="s",
                    limit=1,
                ),
                Panel(
                    title="Time for each further token",
                    queries=[
                        Query(_quantile(0.9, "weighbridge_inter_token_seconds", "target", _TIER), "{{target}} 90 %")
                    ],
                    about="The mean of each request; nine of ten are quicker.",
                    unit="s",
                ),
                Panel(
                    title="Whole requests",
                    queries=[
                        Query(
                            _quantile(0.9, "weighbridge_request_duration_seconds", "target", _TIER), "{{target}} 90 %"
                        )
                    ],
                    about="From the first byte in to the last byte out.",
                    unit="s",
                ),
            ),
        ),
        Row(
            "Upstreams",
            (
                Panel(
                    title="Attempts that failed",
                    queries=[
                        Query(
                            _rate("weighbridge_attempts_total", 'result!="ok"', "deployment, result"),
                            "{{deployment}} {{result}}",
                        )
                    ],
                    about="By deployment and how they ended.",
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Breakers",
                    queries=[Query("max by (deployment) (weighbridge_breaker_state)", "{{deployment}}")],
                    about="0 closed, 1 half-open, 2 open, 3 set aside for its provider's pace.",
                    unit="none",
                ),
                Panel(
                    title="Fallbacks and escalations",
                    queries=[
                        Query(
                            _rate("weighbridge_fallbacks_total", "", "from_target, to_target"),
                            "{{from_target}} → {{to_target}}",
                        ),
                        Query(
                            _rate("weighbridge_escalations_total", "", "from_target, to_target"),
                            "{{from_target}} ⇑ {{to_target}}",
                        ),
                        Query(
                            _rate("weighbridge_agreements_total", "", "target, result"), "{{target}}: two {{result}}"
                        ),
                    ],
                    about="Requests that moved on after a failure (→), weak answers that were asked again (⇑), and those that two cheap models were asked for.",
                    unit="reqps",
                ),
            ),
        ),
        Row(
            "Queues and limits",
            (
                Panel(
                    title="Waiting",
                    queries=[Query("sum by (queue) (weighbridge_queue_waiting)", "{{queue}}")],
                    about="Requests that wait for their turn before our own models.",
                ),
                Panel(
                    title="Queue fill",
                    queries=[
                        Query(
                            "sum by (queue) (weighbridge_queue_in_flight_tokens) / sum by (queue) (weighbridge_queue_capacity_tokens)",
                            "{{queue}}",
                        )
                    ],
                    about="Tokens in flight, as a part of what the replicas hold.",
                    unit="percentunit",
                    limit=0.95,
                ),
                Panel(
                    title="Wait",
                    queries=[
                        Query(
                            _quantile(0.9, "weighbridge_queue_wait_seconds", "queue, tier"), "{{queue}} {{tier}} 90 %"
                        )
                    ],
                    about="Nine of ten waited less.",
                    unit="s",
                ),
                Panel(
                    title="Refused by queues",
                    queries=[Query(_rate("weighbridge_queue_refusals_total", "", "queue, why"), "{{queue}} {{why}}")],
                    about="Requests that overflowed to another model count, too.",
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Refused by limits",
                    queries=[Query(_rate("weighbridge_limits_refused_total", "", "scope, kind"), "{{scope}} {{kind}}")],
                    about="429, by whose limit and of what.",
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Idempotent requests",
                    queries=[Query(_rate("weighbridge_idempotent_requests_total", "", "event"), "{{event}}")],
                    about="Requests with an Idempotency-Key, and what became of them.",
                    unit="reqps",
                ),
            ),
        ),
        Row(
            "Batches",
            (
                Panel(
                    title="Lines of batches",
                    queries=[
                        Query(_rate("weighbridge_batch_lines_total", "", "outcome"), "{{outcome}}"),
                        Query(
                            _rate("weighbridge_batch_handed_lines_total", "", "outcome"), "at a provider: {{outcome}}"
                        ),
                    ],
                    about="Answered, failed, begun again, and lost to another process; and what became of lines that a provider's batch API was handed.",
                    unit="reqps",
                ),
                Panel(
                    title="Least time to spare",
                    queries=[Query("min(weighbridge_batch_least_laxity_seconds)", "slack")],
                    about="Of any batch with a deadline; below 0 it will be late at this speed.",
                    unit="s",
                ),
                Panel(
                    title="Batch tokens a second",
                    queries=[
                        Query("max(weighbridge_batch_tokens_per_second)", "speed"),
                        Query(
                            "histogram_quantile(0.9, sum by (le) (rate(weighbridge_batch_estimate_error_ratio_bucket[$__rate_interval])))",
                            "error of estimates, 90 %",
                        ),
                    ],
                    about="The measured speed, and how far estimates of completion were off, as a part of the time taken.",
                    unit="tps",
                ),
                Panel(
                    title="Work of batches",
                    queries=[
                        Query("max(weighbridge_batches_in_progress)", "batches"),
                        Query("max(weighbridge_batch_lines_left)", "lines"),
                        Query("max(weighbridge_batch_tokens_left)", "tokens"),
                    ],
                    about="Batches in progress, and what is left of them.",
                ),
                Panel(
                    title="Batches that ended",
                    queries=[Query(_rate("weighbridge_batches_ended_total", "", "event"), "{{event}}")],
                    about="By how they ended.",
                    unit="reqps",
                ),
            ),
        ),
        Row(
            "The process",
            (
                Panel(
                    title="Event loop late by",
                    queries=[Query("max(weighbridge_loop_lag_seconds)", "worst worker")],
                    about="Above server.max_lag_s a worker refuses some requests.",
                    unit="s",
                    limit=0.25,
                ),
                Panel(
                    title="Refused for overload",
                    queries=[
                        Query("sum(rate(weighbridge_overload_refusals_total[$__rate_interval]))", "503 at the door")
                    ],
                    about="Requests that a worker had no time for.",
                    unit="reqps",
                ),
                Panel(
                    title="Redis",
                    queries=[
                        Query(_quantile(0.99, "weighbridge_redis_call_seconds"), "99 % of calls within"),
                        Query("min(weighbridge_redis_up)", "up"),
                        Query("min(weighbridge_limits_shared)", "limits shared"),
                    ],
                    about="Calls in seconds; up and shared are 1 or 0. Without a Redis both stay 0.",
                    unit="none",
                ),
                Panel(
                    title="Redis failures",
                    queries=[Query(_rate("weighbridge_redis_failures_total", "", "kind"), "{{kind}}")],
                    about="Calls that failed or were slow.",
                    unit="reqps",
                ),
                Panel(
                    title="Journal",
                    queries=[Query("sum(weighbridge_journal_depth)", "entries")],
                    about="Ledger entries that are not in the database yet. It grows while the database is away; nothing is lost.",
                ),
                Panel(
                    title="Oldest entry that waits",
                    queries=[Query("max(weighbridge_journal_oldest_seconds)", "oldest")],
                    about="Seconds that it has waited for the database. Above a minute somebody should look.",
                    unit="s",
                ),
                Panel(
                    title="Trouble of the books",
                    queries=[
                        Query(_rate("weighbridge_ledger_drain_total", "", "event"), "{{event}}"),
                        Query("sum(rate(weighbridge_journal_write_failures_total[$__rate_interval]))", "disk refused"),
                    ],
                    about="Faults between journals and the database, and writes that the disk refused.",
                    unit="reqps",
                ),
                Panel(
                    title="Classifier",
                    queries=[Query(_quantile(0.99, "weighbridge_classifier_seconds", "source"), "{{source}} 99 %")],
                    about="Seconds to classify a prompt.",
                    unit="s",
                ),
            ),
        ),
    ),
    (("tier", "weighbridge_requests_total"),),
)

_TEAM: Final = 'team=~"$team"'
MONEY: Final = Board(
    "weighbridge-money",
    "Weighbridge: money",
    "Spending and savings at a look. The ledger is the truth: /dashboard/finance and /v1/savings have it.",
    (
        Row(
            "Spending",
            (
                Panel(
                    title="Cost an hour, by team",
                    queries=[Query(f"3600 * {_rate('weighbridge_cost_usd_total', _TEAM, 'team')}", "{{team}}")],
                    about="At the planned rate for our own GPUs, without idle time.",
                    unit="currencyUSD",
                    width=12,
                    stacked=True,
                ),
                Panel(
                    title="Cost an hour, by model",
                    queries=[Query(f"3600 * {_rate('weighbridge_cost_usd_total', _TEAM, 'target')}", "{{target}}")],
                    about="The same money.",
                    unit="currencyUSD",
                    width=12,
                    stacked=True,
                ),
                Panel(
                    title="Saved against the baseline model",
                    queries=[
                        Query(
                            f"1 - {_rate('weighbridge_cost_usd_total', _TEAM, 'team')} "
                            f"/ {_rate('weighbridge_baseline_usd_total', _TEAM, 'team')}",
                            "{{team}}",
                        )
                    ],
                    about="The promise is 40 %, with idle GPUs counted; this graph does not count them.",
                    unit="percentunit",
                    width=12,
                ),
                Panel(
                    title="Unpriced answers",
                    queries=[Query(_rate("weighbridge_unpriced_requests_total", _TEAM, "target"), "{{target}}")],
                    about="Their cost is unknown; they are in no sum. Enter a price.",
                    unit="reqps",
                    width=12,
                    limit=0.000001,
                ),
            ),
        ),
        Row(
            "Tokens",
            (
                Panel(
                    title="Tokens",
                    queries=[Query(_rate("weighbridge_tokens_total", _TEAM, "direction"), "{{direction}}")],
                    about="Tokens a second; cached ones are a part of the input.",
                    unit="tps",
                    width=12,
                ),
                Panel(
                    title="Prompt tokens found in a cache",
                    queries=[
                        Query(
                            _rate("weighbridge_tokens_total", f'{_TEAM}, direction="cached_input"', "team")
                            + " / "
                            + _rate("weighbridge_tokens_total", f'{_TEAM}, direction="input"', "team"),
                            "{{team}}",
                        )
                    ],
                    about="A share of all prompt tokens.",
                    unit="percentunit",
                    width=12,
                ),
            ),
        ),
        Row(
            "Budgets and books",
            (
                Panel(
                    title="Budgets used",
                    queries=[
                        Query(
                            "max by (budget_id) (weighbridge_budget_spent_usd) / max by (budget_id) (weighbridge_budget_limit_usd)",
                            "{{budget_id}}",
                        )
                    ],
                    about="Of each budget's limit in its period.",
                    unit="percentunit",
                    limit=0.9,
                ),
                Panel(
                    title="Refused by budgets",
                    queries=[Query(_rate("weighbridge_budget_refusals_total", "", "scope"), "{{scope}}")],
                    about="Times that a hard budget had no room.",
                    unit="reqps",
                ),
                Panel(
                    title="Roll-ups that differ from the ledger",
                    queries=[Query("max(weighbridge_ledger_differences)", "figures")],
                    about="Must be 0.",
                    limit=1,
                ),
                Panel(
                    title="Since the last check of the books",
                    queries=[Query("time() - max(weighbridge_ledger_verified_timestamp_seconds)", "age")],
                    about="It happens each hour.",
                    unit="s",
                    limit=10_800,
                ),
                Panel(
                    title="Webhooks",
                    queries=[Query(_rate("weighbridge_webhooks_total", "", "result"), "{{result}}")],
                    about="Tries to deliver warnings and reports.",
                    unit="reqps",
                ),
                Panel(
                    title="Verdicts on answers",
                    queries=[Query(_rate("weighbridge_verdicts_total", "", "source, signal"), "{{source}} {{signal}}")],
                    about="Verdicts of people and of signals.",
                    unit="reqps",
                ),
            ),
        ),
    ),
    (("team", "weighbridge_requests_total"),),
)

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
FLEET: Final = Board(
    "weighbridge-fleet",
    "Weighbridge: our own engines",
    "Pools, replicas, caches, the balancer and the scaler.",
    (
        Row(
            "Pools",
            (
                Panel(
                    title="Replicas by state",
                    queries=[
                        Query(
                            f"sum by (pool, state) (max by (pool, replica, state) (weighbridge_replica_state{{{_POOL}}}))",
                            "{{pool}} {{state}}",
                        )
                    ],
                    about="As this gateway sees them.",
                    stacked=True,
                ),
                Panel(
                    title="Desired replicas",
                    queries=[Query(f"max by (pool) (weighbridge_pool_desired_replicas{{{_POOL}}})", "{{pool}}")],
                    about="The scaler's wish; KEDA reads it.",
                ),
                Panel(
                    title="Awake on shared GPUs",
                    queries=[Query(f"max by (gpus, pool) (weighbridge_pool_awake{{{_POOL}}})", "{{gpus}} {{pool}}")],
                    about="One pool of those that share GPUs at a time; none during a switch.",
                ),
                Panel(
                    title="Time of a switch on shared GPUs, 95 % within",
                    queries=[
                        Query(
                            _quantile(0.95, "weighbridge_pool_switch_seconds", "gpus, pool", _POOL), "{{gpus}} {{pool}}"
                        )
                    ],
                    about="Until the pool was awake, the other one's drain included.",
                    unit="s",
                ),
                Panel(
                    title="Prompt tokens found in caches",
                    queries=[Query(f"max by (pool) (weighbridge_pool_prefix_hit_rate{{{_POOL}}})", "{{pool}}")],
                    about="By the engines' own counters.",
                    unit="percentunit",
                ),
                Panel(
                    title="Scale decisions",
                    queries=[
                        Query(_rate("weighbridge_scale_decisions_total", _POOL, "pool, reason"), "{{pool}} {{reason}}")
                    ],
                    about="Rules that decided the number of replicas.",
                    unit="reqps",
                ),
                Panel(
                    title="Reasons for the replica",
                    queries=[
                        Query(_rate("weighbridge_balancer_choices_total", _POOL, "pool, why"), "{{pool}} {{why}}")
                    ],
                    about="prefix: it is cached there.",
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Messages of other hosts",
                    queries=[Query(_rate("weighbridge_hosts_news_total", "", "result"), "{{result}}")],
                    about="heard: counted here as their own; other_pepper, other_hashes: the log says what differs.",
                    unit="reqps",
                ),
                Panel(
                    title="Prompts read by replicas that only read",
                    queries=[
                        Query(
                            _rate("weighbridge_prompts_read_apart_total", _POOL, "pool, result"), "{{pool}} {{result}}"
                        )
                    ],
                    about="failed: the answering replica read it itself. Only pools with `prefill`.",
                    unit="reqps",
                ),
                Panel(
                    title="Streams that another replica went on with",
                    queries=[
                        Query(
                            _rate("weighbridge_continued_streams_total", "", "target, result"), "{{target}} {{result}}"
                        )
                    ],
                    about="Their own replica was lost in the middle, and their team wants them continued. All models.",
                    unit="reqps",
                ),
                Panel(
                    title="Nobody watched",
                    queries=[Query(_rate("weighbridge_pool_unwatched_seconds_total", _POOL, "pool"), "{{pool}}")],
                    about="Seconds a second in which no process knew whether replicas were up.",
                    limit=0.01,
                ),
            ),
        ),
        Row(
            "Replicas",
            (
                Panel(
                    title="KV cache in use",
                    queries=[
                        Query(
                            f"max by (pool, replica) (weighbridge_replica_kv_usage{{{_POOL}}})", "{{pool}}/{{replica}}"
                        )
                    ],
                    about="Unknown while an engine does not tell.",
                    unit="percentunit",
                    limit=0.95,
                ),
                Panel(
                    title="Running",
                    queries=[
                        Query(
                            f"max by (pool, replica) (weighbridge_replica_running{{{_POOL}}})", "{{pool}}/{{replica}}"
                        )
                    ],
                    about="Requests that the engine runs.",
                ),
                Panel(
                    title="Waiting in the engine",
                    queries=[
                        Query(
                            f"max by (pool, replica) (weighbridge_replica_waiting{{{_POOL}}})", "{{pool}}/{{replica}}"
                        )
                    ],
                    about="Our own queues should wait instead.",
                ),
                Panel(
                    title="First token by version, 95 % and 99 % within (interactive)",
                    queries=[
                        Query(
                            _quantile(0.95, "weighbridge_pool_ttft_seconds", "pool, version", _INTERACTIVE),
                            "{{pool}} {{version}} p95",
                        ),
                        Query(
                            _quantile(0.99, "weighbridge_pool_ttft_seconds", "pool, version", _INTERACTIVE),
                            "{{pool}} {{version}} p99",
                        ),
                    ],
                    about="From sending a stream to a replica, without our own queue.",
                    unit="s",
                    limit=1,
                ),
                Panel(
                    title="Time for each further token by version, 99 % within (interactive)",
                    queries=[
                        Query(
                            _quantile(0.99, "weighbridge_pool_inter_token_seconds", "pool, version", _INTERACTIVE),
                            "{{pool}} {{version}}",
                        )
                    ],
                    about="The mean of each request.",
                    unit="s",
                    limit=0.1,
                ),
                Panel(
                    title="Tokens a second by version",
                    queries=[
                        Query(_VERSION_TOKENS, "{{pool}} {{version}}"),
                    ],
                    about="Of replicas that say which version of their model they run.",
                    unit="tps",
                ),
            ),
        ),
        Row(
            "Work and cost of the GPUs",
            (
                Panel(
                    title="Tokens a second a GPU",
                    queries=[Query(f"{_TOKENS} / {_GPUS}", "{{pool}}")],
                    about="Prompt and completion tokens, by the engines' own counters.",
                    unit="tps",
                ),
                Panel(
                    title="Tokens a second a GPU, by version",
                    queries=[
                        Query(
                            f"{_VERSION_TOKENS} / ({_VERSION_UP} * on (pool) group_left () max by (pool) (weighbridge_pool_gpus_per_replica))",
                            "{{pool}} {{version}}",
                        )
                    ],
                    about="Of replicas that say which version of their model they run.",
                    unit="tps",
                ),
                Panel(
                    title="Dollars a million tokens, by version",
                    queries=[
                        Query(
                            f"{_VERSION_UP} * on (pool) group_left () max by (pool) (weighbridge_pool_usd_per_replica_hour) "
                            f"/ (({_VERSION_TOKENS} > 0) * 3600) * 1e6",
                            "{{pool}} {{version}}",
                        )
                    ],
                    about="At this throughput, the version's idle replicas included: a new one with a small share looks dear.",
                    unit="currencyUSD",
                ),
                Panel(
                    title="Model FLOPs utilisation",
                    queries=[
                        Query(
                            f"sum by (pool) (max by (pool, replica) (weighbridge_replica_computed_tokens_per_second{{{_POOL}}})) "
                            f"* on (pool) max by (pool) (weighbridge_pool_flops_per_token) / ({_UP} * on (pool) max by (pool) (weighbridge_pool_peak_flops))",
                            "{{pool}}",
                        )
                    ],
                    about="Operations of computed tokens over the data sheet's: an estimate without attention.",
                    unit="percentunit",
                ),
                Panel(
                    title="Dollars a million tokens",
                    queries=[
                        Query(
                            f"{_UP} * on (pool) max by (pool) (weighbridge_pool_usd_per_replica_hour) / (({_TOKENS} > 0) * 3600) * 1e6",
                            "{{pool}}",
                        )
                    ],
                    about="At this throughput, idle replicas included. Without cost.pools it is not known.",
                    unit="currencyUSD",
                ),
                Panel(
                    title="Model FLOPs utilisation, by version",
                    queries=[
                        Query(
                            f"sum by (pool, version) (max by (pool, replica) (weighbridge_replica_computed_tokens_per_second{{{_POOL}}}) * {_RUNS}) "
                            f"* on (pool) group_left () max by (pool) (weighbridge_pool_flops_per_token) "
                            f"/ ({_VERSION_UP} * on (pool) group_left () max by (pool) (weighbridge_pool_peak_flops))",
                            "{{pool}} {{version}}",
                        )
                    ],
                    about="Of replicas that say which version of their model they run.",
                    unit="percentunit",
                ),
                Panel(
                    title="GPU utilisation",
                    queries=[
                        Query(
                            f"max by (pool, replica) (weighbridge_replica_gpu_utilisation{{{_POOL}}})",
                            "{{pool}}/{{replica}}",
                        )
                    ],
                    about="The time in which a kernel ran, by DCGM. Busy is not the same as fast.",
                    unit="percentunit",
                ),
                Panel(
                    title="GPU memory",
                    queries=[
                        Query(
                            f"max by (pool, replica) (weighbridge_replica_gpu_memory{{{_POOL}}})",
                            "{{pool}}/{{replica}}",
                        )
                    ],
                    about="By DCGM; vLLM takes its share at the start.",
                    unit="percentunit",
                ),
                Panel(
                    title="Preemptions",
                    queries=[
                        Query(
                            f"max by (pool, replica) (weighbridge_replica_preemptions_per_second{{{_POOL}}})",
                            "{{pool}}/{{replica}}",
                        )
                    ],
                    about="Requests that lost their cache to others and are computed again.",
                    unit="reqps",
                ),
                Panel(
                    title="First token in the engine, 95 % and 99 % within",
                    queries=[
                        Query(_quantile(0.95, "vllm:time_to_first_token_seconds", "model_name"), "{{model_name}} p95"),
                        Query(_quantile(0.99, "vllm:time_to_first_token_seconds", "model_name"), "{{model_name}} p99"),
                    ],
                    about="Scraped from vLLM itself, without our own queue.",
                    unit="s",
                    limit=1,
                ),
                Panel(
                    title="Time per output token, 99 % within",
                    queries=[
                        Query(_quantile(0.99, "vllm:inter_token_latency_seconds", "model_name"), "{{model_name}}")
                    ],
                    about="Scraped from vLLM itself.",
                    unit="s",
                    limit=0.05,
                ),
            ),
        ),
        Row(
            "Watching",
            (
                Panel(
                    title="Readings of statistics that failed",
                    queries=[
                        Query(
                            _rate("weighbridge_scrapes_total", f'{_POOL}, result!="ok"', "pool, result"),
                            "{{pool}} {{result}}",
                        )
                    ],
                    about="A stale reading means unknown, not idle.",
                    unit="reqps",
                ),
                Panel(
                    title="Looks for replicas",
                    queries=[
                        Query(
                            _rate("weighbridge_discovery_looks_total", _POOL, "pool, source, result"),
                            "{{pool}} {{source}} {{result}}",
                        ),
                        Query(
                            _rate("weighbridge_discovery_conflicts_total", _POOL, "pool, kind"),
                            "{{pool}} conflict {{kind}}",
                        ),
                    ],
                    about="DNS, Kubernetes or registrations.",
                    unit="reqps",
                ),
                Panel(
                    title="Registrations, adapters, KV events",
                    queries=[
                        Query(_rate("weighbridge_registrations_total", _POOL, "pool, result"), "{{pool}} {{result}}"),
                        Query(
                            _rate("weighbridge_adapter_loads_total", _POOL, "pool, result"),
                            "{{pool}} adapter {{result}}",
                        ),
                        Query(
                            _rate("weighbridge_kv_events_total", _POOL, "pool, result"), "{{pool}} events {{result}}"
                        ),
                    ],
                    about="Messages from and to engines.",
                    unit="reqps",
                ),
            ),
        ),
    ),
    (("pool", "weighbridge_replica_state"),),
)
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


def _laid_out(rows: Iterable[Row], source: dict[str, str]) -> Iterable[dict[str, Any]]:
    number, y = 0, 0
    for row in rows:
        number += 1
        place = {"h": 1, "w": _WIDTH, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place, "collapsed": False, "panels": []}
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
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
            for place, query in enumerate(panel.queries)
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
