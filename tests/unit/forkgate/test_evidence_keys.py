"""Keys from a file, a variable and a command: what can go wrong is told, and the key never is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forkgate import evidence_keys as module
from forkgate.config.evidence import Encryption, EvidenceSection, KeySource
from forkgate.evidence_keys import EvidenceKeyError, key_from_file, keyring_of
from tests.support.at_rest import key

HEX = "01" * 32
BASE64 = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="


def section(**encryption: object) -> EvidenceSection:
    return EvidenceSection(encryption=Encryption(**encryption))  # type: ignore[arg-type]


def command(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


def test_no_section_is_no_key() -> None:
    assert keyring_of(EvidenceSection()).ids == ()


def test_each_source_gives_the_same_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(BASE64 + "\n")
    for one, environment in (
        (section(key_file=str(file)), {}),
        (section(key_env="FORKGATE_KEY"), {"FORKGATE_KEY": HEX}),
        (section(key_command=command(f"print('{HEX}')")), {}),
    ):
        assert keyring_of(one, environment).ids == (key(1).id,)
    assert key_from_file(file).id == key(1).id


def test_old_keys_come_behind_the_current_one_and_may_stand_alone() -> None:
    old = KeySource(key_env="OLD")
    environment = {"NEW": "02" * 32, "OLD": HEX}
    both = keyring_of(section(key_env="NEW", old_keys=(old,)), environment)
    assert both.ids == (key(2).id, key(1).id)
    alone = keyring_of(section(old_keys=(old,)), environment)
    assert (alone.current, alone.ids) == (None, (key(1).id,))


@pytest.mark.parametrize(
    ("encryption", "said"),
    [
        (
            {"key_file": "/nowhere/key"},
            r"evidence\.encryption\.key_file: '/nowhere/key' cannot be read: No such",
        ),
        ({"key_env": "MISSING"}, r"evidence\.encryption\.key_env: the environment has no variable MISSING"),
        ({"key_env": "WRONG"}, r"evidence\.encryption: no key: 12 characters that are neither"),
        ({"key_command": ("/nowhere/tool",)}, r"key_command: '/nowhere/tool' cannot be run: No such"),
        (
            {"key_command": command("import sys; sys.exit('the vault is shut')")},
            r"ended with 1: the vault is shut",
        ),
        ({"old_keys": (KeySource(key_env="MISSING"),)}, r"old_keys\[0\]\.key_env: the environment has no"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(encryption: dict[str, object], said: str) -> None:
    with pytest.raises(EvidenceKeyError, match=said) as caught:
        keyring_of(section(**encryption), {"WRONG": "not-a-key-12"})
    assert "not-a-key-12" not in str(caught.value)


def test_a_command_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMAND_S", 0.2)
    with pytest.raises(EvidenceKeyError, match=r"did not end within 0\.2 s"):
        keyring_of(section(key_command=command("import threading; threading.Event().wait()")))


def test_what_a_failing_command_wrote_is_not_repeated() -> None:
    failing = command(f"import sys; print('{HEX}'); sys.exit(3)")
    with pytest.raises(EvidenceKeyError) as caught:
        keyring_of(section(key_command=failing))
    assert HEX not in str(caught.value)
