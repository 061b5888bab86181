"""The catalog and the classifier of a configuration, for commands that call no upstream."""

from classifier.heuristic import HeuristicClassifier
from classifier.onnx_classifier import OnnxClassifier, load_classifier
from gateway.configuration.gateway_config import GatewayConfig
from providers.catalog import Catalog, build_catalog


def catalog_of(config: GatewayConfig) -> Catalog:
    """Return the configured catalog without looking up any secret: nobody is called with it."""
    selfhosted = config.selfhosted
    return build_catalog(
        config.providers,
        lambda _reference: "unused",
        pools=selfhosted.pool_of_target(),
        served_as=selfhosted.upstream_models(),
    )


def classifier_of(config: GatewayConfig) -> OnnxClassifier | HeuristicClassifier:
    """Load the configured classifier, as a serving process does."""
    catalog = catalog_of(config)
    return load_classifier(config.classifier, catalog.abilities, catalog.efforts)
