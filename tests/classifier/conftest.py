"""One made-up corpus, what words mean, and one artifact trained on both, for all tests of a run."""

import pytest

from classifier.manifest import Artifact
from classifier.training.data import Corpus
from classifier.training.train import Everyday, everyday, train
from tests.classifier import made_up


@pytest.fixture(scope="session")
def made_up_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return made_up.corpus(tmp_path_factory.mktemp("made_up"))


@pytest.fixture(scope="session")
def known_everyday(made_up_corpus: Corpus) -> Everyday:
    return everyday(made_up.tiered(), made_up_corpus.texts)


@pytest.fixture(scope="session")
def made_up_artifact(made_up_corpus: Corpus, known_everyday: Everyday) -> Artifact:
    return train(made_up_corpus, known_everyday, seed=3)
