"""Starts the workers of a test: processes with the variables that torchrun sets, each of which runs one function or one program.

Functions run in processes that are forked from that of the tests, where PyTorch is imported already: that takes seconds. So no test joins
a job, or uses several threads, in the process of the tests itself.
"""

import importlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

# Before PyTorch is imported: a process with threads cannot be forked, and the workers share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = os.path.dirname(os.path.abspath(__file__))

# Generous, for machines that do much else.
TIMEOUT = 180

_OF_STARTERS = ("GLEANER_", "OMPI_", "PMIX_", "SLURM_", "TORCHELASTIC_")
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def clean() -> Dict[str, str]:
    """The environment without what a starter of jobs has left in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_STARTERS) and name not in _OF_TORCHRUN}


def command(name: str) -> Optional[str]:
    """The path of a command that stands beside this Python, or else on PATH."""
    return shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)


def torchrun_fails() -> str:
    """Why the torchrun of this Python starts nothing, or nothing."""
    import torch

    old = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 0)
    if old and sys.version_info >= (3, 11):
        return f"the torchrun of PyTorch {torch.__version__} fails under Python 3.11 and later"
    return ""


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


_PORTS = itertools.count()


def two_ports() -> int:
    """A free port whose successor is free, too: torchrun's and Gleaner's. Below the ephemeral ones, which outgoing connections take."""
    while True:
        port = 10_000 + (97 * os.getpid() + 2 * next(_PORTS)) % 20_000
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def _environment(rank: int, workers: int, port: int, env: Optional[Dict[str, str]]) -> Dict[str, str]:
    started = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "PYTHONUNBUFFERED": "1",
    }
    return {**clean(), **started, **(env or {})}


def _be_worker(function: Callable[..., Any], arguments: List[Any], env: Dict[str, str], out: str, err: str) -> None:
    """What a forked process does: the function, with its result as the last line of its output."""
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    # Tests that were started in the background may have been set to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(env)
    print(json.dumps(function(*arguments)))


class Job:
    """Workers of one job, of ranks that count up from 0."""

    def __init__(self, function: str, workers: int = 2, *arguments: Any, env: Optional[Dict[str, str]] = None) -> None:
        """Workers that run a function, `module:name`."""
        self._begin()
        module, name = function.split(":")
        called, port = getattr(importlib.import_module(module), name), two_ports()
        fork = multiprocessing.get_context("fork")
        for rank in range(workers):
            task = (called, list(arguments), _environment(rank, workers, port, env), *self._files(rank))
            process = fork.Process(target=_be_worker, args=task)
            process.start()
            self._processes.append(process)

    @classmethod
    def of_program(cls, program: str, workers: int, folder: Optional[str] = None, env: Optional[Dict[str, str]] = None) -> "Job":
        """Workers that run a text in a Python of their own, in a folder."""
        job = cls.__new__(cls)
        job._begin()
        port = two_ports()
        for rank in range(workers):
            out, err = job._files(rank)
            with open(out, "wb") as to, open(err, "wb") as said:
                command = [sys.executable, "-c", program]
                started = _environment(rank, workers, port, env)
                job._processes.append(subprocess.Popen(command, cwd=folder, env=started, stdout=to, stderr=said))
        return job

    def _begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._processes: List[Any] = []

    def _files(self, rank: int) -> "tuple[str, str]":
        return os.path.join(self._folder.name, f"{rank}.out"), os.path.join(self._folder.name, f"{rank}.err")

    def send(self, rank: int, number: int) -> None:
        """Sends a signal to a worker."""
        os.kill(self._processes[rank].pid, number)

    def wait_for_end(self, rank: int, until: Optional[float] = None) -> None:
        """Waits until a worker has ended, or it is later than that."""
        until = time.monotonic() + TIMEOUT if until is None else until
        while _code(self._processes[rank]) is None and time.monotonic() < until:
            time.sleep(0.005)

    def ends(self) -> List[Ended]:
        """Waits for all of them."""
        until = time.monotonic() + TIMEOUT
        try:
            for rank in range(len(self._processes)):
                self.wait_for_end(rank, until)
            late = [rank for rank, process in enumerate(self._processes) if _code(process) is None]
        finally:
            for rank, process in enumerate(self._processes):
                if _code(process) is None:
                    self.send(rank, signal.SIGKILL)
        ended = []
        for rank, process in enumerate(self._processes):
            self.wait_for_end(rank)
            texts = []
            for path in self._files(rank):
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(file.read())
            ended.append(Ended(_code(process), *texts))
        if late:
            raise AssertionError(f"ranks {late} did not end within {TIMEOUT} s: {ended}")
        return ended

    def wait_for(self, rank: int, line: str) -> None:
        """Waits until a worker has printed a line."""
        out, err = self._files(rank)
        until = time.monotonic() + TIMEOUT
        while True:
            is_over = _code(self._processes[rank]) is not None or time.monotonic() > until
            if os.path.exists(out):
                with open(out, encoding="utf-8") as file:
                    if line in file.read().splitlines():
                        return
            if is_over:
                with open(err, encoding="utf-8") as file:
                    raise AssertionError(f"rank {rank} did not print '{line}': {file.read()}")
            time.sleep(0.005)


def _code(process: Any) -> Optional[int]:
    """A process's exit code, once it has ended."""
    if isinstance(process, subprocess.Popen):
        return process.poll()
    code: Optional[int] = process.exitcode
    return code


def run(function: str, workers: int = 2, *arguments: Any, env: Optional[Dict[str, str]] = None) -> List[Any]:
    """What the function returns on each rank."""
    return [ended.result for ended in Job(function, workers, *arguments, env=env).ends()]


def program_of(function: str, *arguments: Any) -> str:
    """A program for `Job.of_program` that does what `run` has a forked process do."""
    module, name = function.split(":")
    return (
        f"import json, sys; sys.path.insert(0, {HERE!r}); import {module}\n"
        f"print(json.dumps({module}.{name}(*json.loads({json.dumps(list(arguments))!r}))))"
    )
