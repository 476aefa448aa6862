"""The keeper ends everything that descends from its command, whatever end it comes to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.cli import ports as ports_module
from paceline.cli.ports import free_ports, is_free, require_free
from paceline.cli.processes import descendants
from paceline.errors import InvalidField, Unavailable

# Starts a child in a session of its own whose parent ends at once, as daemons do, and tells its number.
STRAY = """
import subprocess, sys, time
inner = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
middle = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True,"
    " stdout=subprocess.PIPE, stderr=subprocess.DEVNULL); p.stdout.readline(); print(p.pid, flush=True)"
)
stray = subprocess.run([sys.executable, "-c", middle, inner], capture_output=True, text=True).stdout.strip()
open(sys.argv[1], "w").write(stray)
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A keeper with a command that has left a stubborn stray behind: (keeper, stray's pid)."""
    note = tmp_path / "stray"
    keeper = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli.keeper", sys.executable, "-c", STRAY, str(note)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert keeper.stdout is not None
    assert keeper.stdin is not None
    try:
        assert keeper.stdout.readline() == b"started\n"
        stray = int(note.read_text())
        assert stray in descendants(keeper.pid), "a process whose parent ended is still the keeper's"
        yield keeper, stray
    finally:
        keeper.stdin.close()
        keeper.wait(20)
        keeper.stdout.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _close(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.close()


@pytest.mark.parametrize(
    "end",
    [_close, lambda keeper: keeper.send_signal(signal.SIGTERM)],
    ids=["its input closes", "it is told to stop"],
)
def test_keeper_ends_strays(
    kept: tuple[subprocess.Popen[bytes], int], end: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    keeper, stray = kept
    end(keeper)
    assert keeper.wait(20) == 0
    assert gone(stray)


def test_keeper_ends_strays_when_its_command_ends(kept: tuple[subprocess.Popen[bytes], int]) -> None:
    keeper, stray = kept
    (command,) = (pid for pid in descendants(keeper.pid) if pid != stray)
    os.kill(command, signal.SIGKILL)
    keeper.wait(20)
    assert gone(stray)


def test_keeper_ignores_the_terminal(kept: tuple[subprocess.Popen[bytes], int]) -> None:
    keeper, stray = kept
    keeper.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        keeper.wait(0.5)
    assert not gone(stray)


def test_keeper_survives_nobody_being_there_to_close_it(tmp_path: Path) -> None:
    """Its starter is killed outright: the other end of its input closes with it."""
    note, pids = tmp_path / "stray", tmp_path / "keeper"
    starter = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-m', 'paceline.cli.keeper',"
        " sys.executable, '-c', sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,"
        " start_new_session=True); p.stdout.readline(); open(sys.argv[3], 'w').write(str(p.pid));"
        " print('started', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", starter, STRAY, str(note), str(pids)], stdout=subprocess.PIPE, start_new_session=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.kill()
    keeper, stray = int(pids.read_text()), int(note.read_text())
    deadline = time.monotonic() + 20
    while not (gone(keeper) and gone(stray)):
        assert time.monotonic() < deadline, "the keeper or its stray is left"
        time.sleep(0.05)


def test_taken_port_is_named() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port, "127.0.0.1")
        with pytest.raises(InvalidField, match=f"--grpc-port: got {port}, allowed: a free port"):
            require_free("--grpc-port", port, "127.0.0.1")


def test_port_on_every_address_counts_as_taken() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        assert not is_free(listener.getsockname()[1], "127.0.0.1")


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port, "127.0.0.1") for port in ports)


def test_no_connection_can_take_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for low, high in ((first, last), (25000, 60999), (49152, 65535)):
        monkeypatch.setattr(ports_module, "_handed_out", lambda low=low, high=high: (low, high))
        assert not any(low <= port <= high for port in free_ports(20))


def test_free_ports_where_the_system_hands_out_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports_module, "_handed_out", lambda: (1024, 65535))
    assert len(set(free_ports(4))) == 4


def test_too_few_free_ports_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports_module, "OWN_PORTS", range(20000, 20002))
    monkeypatch.setattr(ports_module, "is_free", lambda port, host: port == 20001)
    with pytest.raises(Unavailable, match="2 free ports are needed between 20000 and 20001, 1 are"):
        free_ports(2)
