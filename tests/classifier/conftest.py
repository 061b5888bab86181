"""One made-up corpus, what words mean, and one artifact trained on both, for all tests of a run."""

import pytest

from classifier.manifest import Artifact
from classifier.training.data import Corpus
from classifier.training.train import Everyday, everyday, train
from tests.classifier import made_up
from tests.once import made_once


@pytest.fixture(scope="session")
def made_up_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return made_up.corpus(tmp_path_factory.mktemp("made_up"))


@pytest.fixture(scope="session")
def known_everyday(made_up_corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Everyday:
    texts = made_up_corpus.texts
    return made_once(tmp_path_factory, "everyday", lambda: everyday(made_up.tiered(), texts))


@pytest.fixture(scope="session")
def made_up_artifact(
    made_up_corpus: Corpus, known_everyday: Everyday, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    return made_once(tmp_path_factory, "artifact", lambda: train(made_up_corpus, known_everyday, seed=3))
