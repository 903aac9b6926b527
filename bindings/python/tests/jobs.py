"""Starts the workers of a test: processes with the variables that torchrun sets, each of which runs one function."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional

HERE = os.path.dirname(os.path.abspath(__file__))

# Generous, for machines that do much else.
TIMEOUT = 120


class Ended(NamedTuple):
    """How a worker ended."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        """What the worker's function returned."""
        if self.code != 0:
            raise AssertionError(f"a worker ended with {self.code}:\n{self.out}\n{self.err}")
        return json.loads(self.out.strip().splitlines()[-1])


def two_ports() -> int:
    """A free port whose successor is free, too: torchrun's and Gleaner's."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


class Job:
    """Workers that run a function of a test's module."""

    def __init__(self, function: str, workers: int = 2, arguments: Any = None, env: Optional[Dict[str, str]] = None) -> None:
        module, name = function.split(":")
        program = (
            f"import json, sys; sys.path.insert(0, {HERE!r}); import {module}\n"
            f"print(json.dumps({module}.{name}(*json.loads(sys.argv[1]))))"
        )
        self._start([program, json.dumps(arguments or [])], workers, env)

    @classmethod
    def of_program(cls, program: str, workers: int, folder: str) -> "Job":
        """Workers that run a text, in a folder."""
        job = cls.__new__(cls)
        job._start([program], workers, None, folder)
        return job

    def _start(self, program: List[str], workers: int, env: Optional[Dict[str, str]], folder: Optional[str] = None) -> None:
        port = str(two_ports())
        self.processes: List["subprocess.Popen[str]"] = []
        for rank in range(workers):
            started = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(workers),
                "LOCAL_WORLD_SIZE": str(workers),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "test",
                "TORCHELASTIC_RESTART_COUNT": "0",
                "OMP_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
            }
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", *program],
                    cwd=folder,
                    env={**os.environ, **started, **(env or {})},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def ends(self) -> List[Ended]:
        """Waits for all of them."""
        until = time.monotonic() + TIMEOUT
        ended = []
        try:
            for process in self.processes:
                out, err = process.communicate(timeout=max(1.0, until - time.monotonic()))
                ended.append(Ended(process.returncode, out, err))
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
        return ended

    def wait_for(self, rank: int, line: str) -> None:
        """Waits until a worker has printed a line."""
        out = self.processes[rank].stdout
        assert out is not None
        while True:
            found = out.readline()
            if not found:
                raise AssertionError(f"rank {rank} ended before it printed '{line}'")
            if found.strip() == line:
                return


def run(function: str, workers: int = 2, *arguments: Any, env: Optional[Dict[str, str]] = None) -> List[Any]:
    """What the function returns on each rank."""
    return [ended.result for ended in Job(function, workers, list(arguments), env).ends()]
