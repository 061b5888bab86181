"""One made-up corpus and one artifact trained on it, for all tests of a run."""

import pytest

from classifier.manifest import Artifact
from classifier.training.data import Corpus
from classifier.training.train import train
from tests.classifier import made_up


@pytest.fixture(scope="session")
def made_up_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return made_up.corpus(tmp_path_factory.mktemp("made_up"))


@pytest.fixture(scope="session")
def made_up_artifact(made_up_corpus: Corpus) -> Artifact:
    return train(made_up_corpus, seed=3)
