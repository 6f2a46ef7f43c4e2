"""The command line's way to a judge elsewhere: what it refuses before anything is sent, and the audit log's
commands."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from forkgate.admin.audit import AuditEntry, AuditFile, verify
from tests.unit.forkgate.test_cli import forkgate

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("http://judge.internal:9465", "would carry the token in the clear, use https"),
        ("https://ana:secret@judge.internal", "holds a credential, use --token-file"),
        ("judge.internal:9465", "is not https://HOST:PORT"),
        ("https://judge.internal/v1", "is not https://HOST:PORT"),
        ("https://judge.internal:port", "is not a URL"),
    ],
)
def test_address_that_is_none_or_would_tell_a_token_is_a_usage_error(server: str, says: str) -> None:
    done = forkgate("--server", server, "status")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("content", [None, "", "two words"])
def test_token_file_must_hold_one_token(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    done = forkgate("--server", "http://127.0.0.1:9", "--token-file", str(file), "status")
    assert done.returncode == 2
    assert done.stderr.startswith(f"--token-file: {file}: ")


def test_two_judges_at_once_are_a_usage_error(tmp_path: Path) -> None:
    done = forkgate("status", "--state-dir", str(tmp_path), FORKGATE_SERVER="http://127.0.0.1:9")
    assert done.returncode == 2
    assert "--server and --state-dir name two judges" in done.stderr


def test_nobody_at_an_address_is_could_not_measure() -> None:
    done = forkgate("--server", "http://127.0.0.1:9", "status")
    assert done.returncode == 4
    assert "http://127.0.0.1:9: no judge answers there" in done.stderr


def test_token_goes_to_the_server_that_was_named_and_follows_no_redirect(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                heads.append(peer.recv(65_536))
                peer.sendall(b"HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        done = forkgate(
            "rollout",
            "list",
            FORKGATE_SERVER=f"http://127.0.0.1:{listener.getsockname()[1]}",
            FORKGATE_TOKEN_FILE=str(tmp_path / "token"),
        )
        thread.join()
    assert done.returncode == 2
    assert "the judge answered 307" in done.stderr
    assert f"authorization: Bearer {TOKEN}\r\n".encode() in heads[0]


def test_audit_verify_tells_a_whole_log_from_a_broken_one_by_its_exit(tmp_path: Path) -> None:
    log = AuditFile(tmp_path / "audit.jsonl")
    for number in range(3):
        log.append(AuditEntry(unix_s=1.0, kind="asked", why=f"reason {number}"))
    log.close()
    head = verify(tmp_path / "audit.jsonl").head
    done = forkgate("audit", "verify", "--state-dir", str(tmp_path), "--head", head)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"holds, 3 lines, 3 actions without a result, head {head}" in done.stdout
    assert forkgate("audit", "verify", "--state-dir", str(tmp_path), "--head", "0" * 64).returncode == 1
    raw = (tmp_path / "audit.jsonl").read_bytes()
    (tmp_path / "audit.jsonl").write_bytes(raw.replace(b"reason 1", b"reason X"))
    done = forkgate("audit", "verify", str(tmp_path / "audit.jsonl"), "--json")
    assert done.returncode == 1
    assert "line 2: its content was changed, seq 2" in done.stdout
    assert forkgate("audit", "verify", str(tmp_path / "none")).returncode == 2
