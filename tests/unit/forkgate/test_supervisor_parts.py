"""Sockets, backoff, children on a leash."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from forkgate.identifiers import uuid7
from forkgate.supervisor import Supervisor, child, leash
from forkgate.supervisor.backoff import FIRST_S, HEALTHY_S, LONGEST_S, Backoff
from forkgate.supervisor.listener import ListenError, bind, handed_over
from tests.support.judging import config
from tests.support.waiting import LIMIT_S


def test_backoff_doubles_to_its_bound_and_forgets_after_a_healthy_life() -> None:
    backoff = Backoff()
    waits = [backoff.after(0.0) for _ in range(12)]
    assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waits[-1] == LONGEST_S
    assert backoff.after(HEALTHY_S) == FIRST_S


def test_port_that_somebody_listens_on_is_refused_in_words() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ListenError) as caught:
            bind("127.0.0.1", port, 16)
    assert str(caught.value) == (
        f"listen.port: 127.0.0.1:{port} is taken by another process, stop that one or choose another port"
    )


def test_address_of_another_machine_is_refused_in_words() -> None:
    with pytest.raises(ListenError, match=r"listen\.host: '192\.0\.2\.1' is no address of this machine"):
        bind("192.0.2.1", 0, 16)


def handed(number: str, fd: int) -> tuple[list[socket.socket], dict[str, str]]:
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": number, "LISTEN_FDNAMES": "http", "HOME": "/"}
    with mock.patch("forkgate.supervisor.listener._FIRST_HANDED", fd):
        return handed_over(environ), environ


def test_socket_that_a_service_manager_bound_is_taken_and_no_child_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        (one,), environ = handed("1", os.dup(bound.fileno()))
        with one:
            assert one.getsockname() == bound.getsockname()
            assert not one.get_inheritable()
    assert environ == {"HOME": "/"}


def test_sockets_that_were_meant_for_a_parent_are_not_taken() -> None:
    environ = {"LISTEN_PID": str(os.getppid()), "LISTEN_FDS": "1"}
    assert handed_over(environ) == []
    assert environ == {}


def test_what_is_no_listening_socket_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="LISTEN_FDS: 'two' is no number of sockets"):
        handed("two", 3)
    with (tmp_path / "file").open("wb") as file, pytest.raises(ListenError, match="is no socket"):
        handed("1", file.fileno())
    with socket.socket() as idle, pytest.raises(ListenError, match="is no listening TCP socket"):
        handed("1", os.dup(idle.fileno()))


def test_bound_sockets_do_not_leak_into_children_by_themselves() -> None:
    (one,) = bind("127.0.0.1", 0, 16)
    assert not one.get_inheritable()
    one.close()


def test_child_reads_its_settings_and_says_that_it_is_ready() -> None:
    code = "import sys, os; fd = int(sys.stdin.read()); os.write(fd, b'ready\\n'); sys.exit(7)"

    async def run() -> tuple[bool, int]:
        one = await child.start("test", ("-c", code), lambda fd: str(fd).encode())
        return await one.ready(), await one.wait()

    assert asyncio.run(run()) == (True, 7)


def test_child_that_dies_before_it_is_ready_is_not_waited_for() -> None:
    async def run() -> tuple[bool, int]:
        one = await child.start("test", ("-c", "raise SystemExit(3)"), lambda fd: b"x" * 1_000_000)
        return await one.ready(), await one.wait()

    assert asyncio.run(run()) == (False, 3)


def test_child_inherits_a_socket_under_its_number() -> None:
    code = (
        "import sys, os, socket; sys.stdin.read(); s = socket.socket(fileno=int(sys.argv[1]));"
        "print(s.getsockname()[1], file=sys.stderr)"
    )
    (one,) = bind("127.0.0.1", 0, 16)

    async def run() -> int:
        started = await child.start("test", ("-c", code, str(one.fileno())), lambda fd: b"", (one.fileno(),))
        return await started.wait()

    assert asyncio.run(run()) == 0
    one.close()


def test_killed_parent_takes_its_leashed_child_along() -> None:
    # The parent starts a leashed child that reports when SIGTERM reaches it, and is killed -9.
    child_code = (
        "import signal, sys;"
        "stop = lambda *_: (sys.stdout.write('term\\n'), sys.stdout.flush(), sys.exit(0));"
        "signal.signal(signal.SIGTERM, stop);"
        "sys.stdout.write('up\\n'); sys.stdout.flush(); signal.pause()"
    )
    parent_code = (
        "import os, subprocess, sys, signal;"
        "leash = [sys.executable, '-I', '-S', sys.argv[1], str(os.getpid())];"
        "subprocess.Popen([*leash, sys.executable, '-c', sys.argv[2]]);"
        "signal.pause()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code, str(Path(leash.__file__)), child_code], stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert parent.stdout.readline() == b"term\n"


def test_leash_refuses_to_start_an_orphan() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(leash.__file__)), "1", sys.executable, "-c", "print('ran')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "leash: the supervisor is gone already\n"
    assert done.stdout == ""


def test_exit_statuses_read_as_words() -> None:
    assert child.died_of(-signal.SIGKILL) == "signal SIGKILL"
    assert child.died_of(2) == "exit status 2"


def test_uuid7_sorts_by_time_and_carries_its_version() -> None:
    made = [uuid7() for _ in range(100)]
    assert len(set(made)) == 100
    assert all(one[14] == "7" and one[19] in "89ab" for one in made)
    assert [one[:13] for one in made] == sorted(one[:13] for one in made)
    assert os.getpid()


def test_part_that_a_bug_leaves_without_a_keeper_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def start() -> child.Child:
        raise KeyError("a bug")

    async def main() -> None:
        supervisor = Supervisor(config(tmp_path), {})
        await asyncio.wait({supervisor._keep("judge", start)})
        await asyncio.sleep(0)  # its callback runs

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    (record,) = (one for one in caplog.records if one.levelname == "CRITICAL")
    assert record.getMessage() == "nobody restarts this child any more"
    assert record.__dict__["child"] == "judge"


@pytest.mark.parametrize(
    ("before", "connections", "after", "told"),
    [
        ((256, 4_090), 1_000, 4_048, False),
        ((256, 3_000), 1_000, 3_000, True),
        ((4_000, 4_000), 10, 4_000, False),
    ],
    ids=["the system has more", "and not enough", "there are enough"],
)
def test_descriptors_are_asked_for_as_the_configuration_needs_them(
    before: tuple[int, int], connections: int, after: int, told: bool
) -> None:
    code = (
        "import logging, resource, sys; from forkgate.supervisor.descriptors import make_room;"
        "logging.basicConfig(stream=sys.stdout, format='%(message)s');"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, {before});"
        f"make_room({connections}); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < before[1]:
        pytest.skip(f"this machine allows no more than {hard} descriptors")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lines, limit = done.stdout.splitlines()
    assert (int(limit), bool(lines)) == (after, told)
