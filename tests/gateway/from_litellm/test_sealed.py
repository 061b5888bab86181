"""What LiteLLM seals is opened with its key and with no other."""

import sys

import pytest

from gateway.from_litellm.sealed import NeedsPyNaCl, NotOpened, open_sealed
from gateway.from_litellm.tables import Theirs, documents_of
from gateway.from_litellm.told import Account
from tests.gateway.from_litellm.litellm_database import sealed

# Made by PyNaCl's SecretBox under the SHA-256 of the key.
BOXES = [
    ("sk-salt-1234", "sk-proj-secret", "XCkg86B7DSFe_eg-NYVzEwmDiDL4fZm4vWdJDp3nxLV9w7ej55IbVVsXGVoL2ncWRtct2H_d"),
    ("sk-salt-1234", "", "Gxax31OLoS3D-X7buFyqcFDUbBSBNCkPqQ1MjvYF3eH5yESghC9v4A=="),
    (
        "other",
        "https://räksmörgås.example/v1",
        "bzFrccPM6b50d4rsBGQaFpSbfLhfaAUJ6q0Nw2xI5WOIIwFLdifXHRSH6S9i9Ph5LXc6XJbNS5MWFYiQKvXjkqHlGitTapOb",
    ),
]


@pytest.mark.parametrize(("key", "plain", "box"), BOXES)
def test_a_secret_box_is_opened(key: str, plain: str, box: str) -> None:
    """NaCl's box, with either alphabet of base64."""
    assert open_sealed(box, key) == plain
    assert open_sealed(box.replace("-", "+").replace("_", "/"), key) == plain


@pytest.mark.parametrize("text", ["", "x", "sk-proj-" + "a" * 500, "ünïcode"])
def test_an_aes_box_is_opened(text: str) -> None:
    """AES-GCM behind its mark."""
    assert open_sealed(sealed(text, "salt"), "salt") == text


@pytest.mark.parametrize(
    "value",
    [
        BOXES[0][2][:-6] + "AAAAA=",
        BOXES[0][2][:40],
        "",
        "gpt-4o",
        "os.environ/OPENAI_API_KEY",
        "v2:gcm:",
        "v2:gcm:AAAA",
        "v2:gcm:%%%",
        "A" * 200_001,
    ],
)
def test_nothing_else_is(value: str) -> None:
    """A box that was changed or cut off, and what is none: NotOpened, nothing else."""
    with pytest.raises(NotOpened):
        open_sealed(value, "sk-salt-1234")


def test_another_key_s_box_is_not_opened() -> None:
    with pytest.raises(NotOpened):
        open_sealed(sealed("text", "another"), "sk-salt-1234")


def test_a_box_without_pynacl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key may well be right, so another key is not what is asked for."""
    monkeypatch.setitem(sys.modules, "nacl.secret", None)
    key, _, box = BOXES[0]
    with pytest.raises(NeedsPyNaCl):
        open_sealed(box, key)
    account = Account()
    documents_of(Theirs(rows={"models": [{"model_name": "it", "litellm_params": {"model": box}}]}), key, account)
    assert all("pip install 'weighbridge[litellm]'" in each.words for each in account.told)
    assert [each.place for each in account.told] == ["model it", "sealed values"]
    with pytest.raises(NotOpened) as failed:
        open_sealed("gpt-4o", key)
    assert not isinstance(failed.value, NeedsPyNaCl)
