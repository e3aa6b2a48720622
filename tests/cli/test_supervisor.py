"""The supervisor keeps programs running and takes them down with itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sits_cli.supervisor import Change, Event, Program, Supervisor, last_lines

WAIT_S = 20.0
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)"
)


def program(folder: Path, name: str, code: str = SLEEP) -> Program:
    return Program(name, (sys.executable, "-c", code), dict(os.environ), folder / f"{name}.log")


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up, f"{what} did not happen within {WAIT_S} s"
        time.sleep(0.01)


def running(supervisor: Supervisor, name: str) -> int:
    until(lambda: last_lines(supervisor.child(name).program.log), f"{name} starts")
    pid = supervisor.child(name).pid
    assert pid is not None
    return pid


def alive(pid: int) -> bool:
    """Zombies are dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_killed_program_comes_back_and_others_stay(tmp_path: Path) -> None:
    with Supervisor([program(tmp_path, "a"), program(tmp_path, "b")]) as supervisor:
        first, other = running(supervisor, "a"), running(supervisor, "b")
        supervisor.kill("a", signal.SIGKILL)
        until(lambda: supervisor.child("a").pid not in (first, None), "the restart")
        assert supervisor.child("a").restarts == 1
        assert supervisor.child("b").pid == other


def test_killed_without_restart_it_stays_down_until_revived(tmp_path: Path) -> None:
    events: list[Event] = []
    with Supervisor([program(tmp_path, "a")], listener=events.append) as supervisor:
        running(supervisor, "a")
        supervisor.kill("a", signal.SIGKILL, restart=False)
        until(lambda: supervisor.child("a").pid is None, "the end")
        assert events[-1] == Event("a", Change.EXITED, events[0].pid, -signal.SIGKILL, None)
        supervisor.revive("a")
        until(lambda: supervisor.child("a").pid is not None, "the revival")


def test_a_wrong_setting_is_not_tried_again(tmp_path: Path) -> None:
    events: list[Event] = []
    wrong = program(tmp_path, "a", "import sys; sys.exit('SITS_X: no' and 2)")
    with Supervisor([wrong], listener=events.append) as supervisor:
        until(lambda: events and events[-1].change is Change.GAVE_UP, "giving up")
        assert supervisor.child("a").exit_status == 2
    assert [event.change for event in events] == [Change.STARTED, Change.GAVE_UP]


def test_the_wait_before_a_restart_grows(tmp_path: Path) -> None:
    events: list[Event] = []
    crashing = program(tmp_path, "a", "raise SystemExit(1)")

    def waits() -> list[float]:
        return [event.back_in_s for event in events if event.back_in_s is not None]

    with Supervisor([crashing], listener=events.append):
        until(lambda: len(waits()) >= 3, "three crashes")
    assert waits()[:3] == [0.2, 0.4, 0.8]


def test_programs_stop_in_the_reverse_order(tmp_path: Path) -> None:
    events: list[Event] = []
    programs = [program(tmp_path, name) for name in "abc"]
    with Supervisor(programs, listener=events.append) as supervisor:
        for name in "abc":
            running(supervisor, name)
    stopped = [event.name for event in events if event.change is Change.STOPPED]
    assert stopped == ["c", "b", "a"]


def test_a_program_that_will_not_stop_is_killed(tmp_path: Path) -> None:
    supervisor = Supervisor([program(tmp_path, "a", STUBBORN)], stop_timeout_s=0.2)
    with supervisor:
        pid = running(supervisor, "a")
    assert not alive(pid)
    assert supervisor.child("a").exit_status == -signal.SIGKILL


def test_kill_all_cuts_a_slow_stop_short(tmp_path: Path) -> None:
    supervisor = Supervisor([program(tmp_path, "a", STUBBORN)], stop_timeout_s=600)
    supervisor.start()
    pid = running(supervisor, "a")
    supervisor.kill_all()
    supervisor.stop()
    assert not alive(pid)


def test_ctrl_c_does_not_reach_the_programs(tmp_path: Path) -> None:
    """They stop in order, told by us, not all at once by the terminal."""
    with Supervisor([program(tmp_path, "a")]) as supervisor:
        assert os.getpgid(running(supervisor, "a")) != os.getpgid(0)


def test_stopping_what_never_started_does_nothing(tmp_path: Path) -> None:
    Supervisor([program(tmp_path, "a")]).stop()


def test_a_log_is_fresh_at_the_start_and_kept_over_restarts(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("of last week\n")
    with Supervisor([program(tmp_path, "a")]) as supervisor:
        until(lambda: last_lines(tmp_path / "a.log") == ["up"], "the first line")
        supervisor.kill("a", signal.SIGKILL)
        until(lambda: last_lines(tmp_path / "a.log") == ["up", "up"], "the second line")


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no program 'x'; there are a"):
        Supervisor([program(tmp_path, "a")]).kill("x", signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel call exists on Linux only")
def test_programs_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from sits_cli.supervisor import Program, Supervisor
argv = (sys.executable, "-c", {SLEEP!r})
Supervisor([Program("a", argv, dict(os.environ), Path({str(tmp_path / "a.log")!r}))]).start()
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        until(lambda: last_lines(tmp_path / "a.log"), "the program starts")
        children = Path(f"/proc/{parent.pid}/task").glob("*/children")
        (pid,) = {int(pid) for file in children for pid in file.read_text().split()}
        parent.kill()
    until(lambda: not alive(pid), "the program dies")
