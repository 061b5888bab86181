"""Checks of the whole configuration that no section can make alone: names of rows and prices, pools, queues, shared GPUs."""

import functools
from collections.abc import Iterator, Mapping

from classifier.config import ClassifierSection
from classifier.known_models import known_model, nearest_names
from classifier.shipped_rows import shipped_rows
from classifier.tuning import Ability
from cost.errors import PriceError
from cost.price_book.litellm_table import read_table
from cost.price_book.price_config import LitellmPrices, dated_price, price_items
from gateway.configuration.file import Document, KeyPath, Problem
from gateway.configuration.gateway_config import GatewayConfig
from providers.catalog import secret_reader
from providers.config import ProvidersSection
from providers.known_rows import NO_ROW
from proxy.shared.redis.redis_address import address_problem


def ability_problems(providers: ProvidersSection, classifier: ClassifierSection, document: Document) -> list[Problem]:
    """Return a problem, with its line, for each `ability` that names nothing, with the nearest names."""
    named = [
        (index, model.ability)
        for index, model in enumerate(providers.models)
        if model.ability not in {None, NO_ROW} and known_model([model.ability or ""]) is None
    ]
    # The table is read only when one of them may be in it alone; where it cannot be, the start says why.
    table = shipped_rows(classifier.artifact_dir) if named else {}
    if not table:
        return []
    return [
        document.problem(("providers", "models", index, "ability"), _nothing(name or "", table))
        for index, name in named
        if name not in table
    ]


def _nothing(name: str, table: Mapping[str, Ability]) -> str:
    near = nearest_names(name)
    meant = f"; did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else "."
    return (
        f"no known model and no row is called `{name}`{meant} Leave it out to have the model found by its names; `{NO_ROW}` gives it "
        f"no row; `weighbridge classifier explain --all hello` lists the {len(table)} rows"
    )


def redis_problems(config: GatewayConfig, document: Document, secrets_from: Mapping[str, str]) -> list[Problem]:
    """Check the secret that holds Redis's address, which can be validated only here; it is not repeated."""
    if config.redis.url is None:
        return []
    try:
        wrong = address_problem(secret_reader(secrets_from)(config.redis.url))
    except (LookupError, OSError, UnicodeDecodeError):
        # That it is not there is told with all other secrets.
        return []
    return (
        [] if wrong is None else [document.problem(("redis", "url"), f"leads to an address that is wrong: it {wrong}")]
    )


def report_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Check that the reports' webhook is configured: a missing one would be noticed only when a report is needed."""
    wanted = None if config.cost.report is None else config.cost.report.webhook
    if wanted is None or wanted in config.webhooks.names():
        return []
    known = ", ".join(config.webhooks.names()) or "none are configured"
    told = f"no destination of `webhooks` has this name; there are: {known}"
    return [document.problem(("cost", "report", "webhook"), told)]


def pool_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Check that a model has either its own addresses or a pool's replicas, and that a queue without a size has a pool
    to size it.
    """
    served = config.selfhosted.pool_of_target()
    spot = {target for pool in config.selfhosted.pools if pool.spot for target in pool.targets}
    problems = []
    for index, model in enumerate(config.providers.models):
        where = ("providers", "models", index, "deployments")
        if model.deployments and model.model_id in served:
            told = f"the pool `{served[model.model_id]}` of `selfhosted.pools` serves it, so it has no addresses of its own"
            problems.append(document.problem(where, told))
        elif not model.deployments and model.model_id not in served:
            problems.append(
                document.problem(
                    where,
                    "is needed (or `model`, its name at the `provider`), unless a pool of `selfhosted.pools` serves the model",
                )
            )
        if model.model_id in spot and model.tier_eligibility != {"batch"}:
            place = ("providers", "models", index, "tier_eligibility")
            told = (
                f"has to be [batch], because the pool `{served[model.model_id]}` that serves the model is a spot pool"
            )
            problems.append(document.problem(place, told))
    for name, queue in config.queues.items():
        if not queue.tokens_in_flight and not served.keys() >= set(queue.targets):
            told = "is needed, unless every target of the queue is served by a pool of `selfhosted.pools`"
            problems.append(document.problem(("queues", name, "tokens_in_flight"), told))
    costed = {pool.name: set(pool.targets) for pool in config.cost.pools}
    for index, pool in enumerate(config.selfhosted.pools):
        strangers = costed.get(pool.name, set()) - set(pool.served)
        if strangers:
            told = (
                f"`cost.pools` has {', '.join(sorted(strangers))} in a pool of this name, which this one does not serve"
            )
            problems.append(document.problem(("selfhosted", "pools", index, "targets"), told))
    return problems


def plugin_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Check that plug-ins have names of their own, and that the dialects of deployments are there."""
    names = [plugin.name for plugin in config.plugins]
    problems = [
        document.problem(("plugins", index, "name"), "another plug-in has this name")
        for index, name in enumerate(names)
        if name in names[:index]
    ]
    problems += _plugin_rule_problems(config, document)
    dialects = [plugin.name for plugin in config.plugins if plugin.kind == "dialect"]
    for index, model in enumerate(config.providers.models):
        for place, deployment in enumerate(model.deployments):
            if deployment.dialect is not None and deployment.dialect not in dialects:
                where = ("providers", "models", index, "deployments", place, "dialect")
                told = f"no plug-in of kind dialect has this name; there are: {', '.join(dialects) or 'none'}"
                problems.append(document.problem(where, told))
    return problems


def _plugin_rule_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Check that the guard's rules ask plug-ins that are there, and that each guard is asked: one that is named and not asked would let
    pass what it is there to stop.
    """
    guards = [plugin.name for plugin in config.plugins if plugin.kind == "guard"]
    known = f"no plug-in of kind guard has this name; there are: {', '.join(guards) or 'none'}"
    rules = config.guard.rules
    problems = [
        document.problem(("guard", "rules", index, "use"), known)
        for index, rule in enumerate(rules)
        if rule.use is not None and rule.use not in guards
    ]
    asked = {rule.use for rule in rules}
    problems += [
        document.problem(
            ("plugins", index, "name"),
            f"nobody asks it: add `{{name: {plugin.name.lower()}, kind: plugin, use: {plugin.name}, input: flag}}` to `guard.rules`",
        )
        for index, plugin in enumerate(config.plugins)
        if plugin.kind == "guard" and plugin.name not in asked
    ]
    return problems


def shared_gpu_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Check that callers of a pool that sleeps can wait for it, and that the GPUs that pools share are paid for once."""
    problems = []
    pools = {pool.name: pool for pool in config.selfhosted.pools}
    costs = {pool.name: pool for pool in config.cost.pools}
    queued = {target: set(queue.targets) for queue in config.queues.values() for target in queue.targets}
    for index, group in enumerate(config.selfhosted.shared_gpus):
        where = ("selfhosted", "shared_gpus", index, "pools")
        for name in group.pools:
            served = set(pools[name].served)
            waits = [queued.get(target, set()) for target in served]
            if not all(waits) or any(not targets <= served for targets in waits):
                told = (
                    f"the pool `{name}` needs a queue of its own, in which requests wait while it sleeps: "
                    f"`queues: {{{name}: {{targets: [{', '.join(pools[name].served)}]}}}}`"
                )
                problems.append(document.problem(where, told))
        paid = [costs[name] for name in group.pools if name in costs]
        if not paid:
            continue
        if (
            len(paid) < len(group.pools)
            or len({(each.usd_per_gpu_hour, each.overhead, each.organisation) for each in paid}) > 1
        ):
            told = "all of them have the same `usd_per_gpu_hour`, `overhead` and `organisation` in `cost.pools`: they are the same GPUs"
            problems.append(document.problem(where, told))
        if sum(each.replicas > 0 for each in paid) > 1:
            told = (
                "an hour of which nothing is recorded would be paid for by each of them; set `replicas: 0` in `cost.pools` for "
                f"all but one, such as `{group.pools[0]}`"
            )
            problems.append(document.problem(where, told))
    return problems


def price_problems(section: ProvidersSection, document: Document) -> list[Problem]:
    """Return a problem, with its line, for each name without a price. The table is read only when one is needed."""
    table = functools.cache(read_table)
    problems = []
    for path, target_id, item in _from_litellm(section):
        try:
            dated_price(target_id, item, table)
        except PriceError as error:
            problems.append(document.problem(path, str(error)))
    return problems


def _from_litellm(section: ProvidersSection) -> Iterator[tuple[KeyPath, str, LitellmPrices]]:
    for index, model in enumerate(section.models):
        for place, item in enumerate(price_items(model.prices)):
            if isinstance(item, LitellmPrices):
                inner: KeyPath = (place,) if isinstance(model.prices, tuple) else ()
                yield ("providers", "models", index, "prices", *inner, "name"), model.model_id, item
