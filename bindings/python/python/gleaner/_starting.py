"""How a worker finds the others: what the native half reads from the environment, and what is added to that here.

On one host a secret passes from rank 0 to the others in a file that only this user can read, so that `torchrun script.py` needs
no preparation. Between hosts the user provides it: GLEANER_SECRET_FILE.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import tempfile
import time
from typing import Callable, Iterator, Optional

from gleaner import _native
from gleaner.errors import ConfigError

_TIMEOUT = 30.0


def join() -> _native.Session:
    """Joins the job that the environment describes: that of `gleaner launch`, torchrun, Slurm or Open MPI."""
    with _secret_of_torchrun():
        return _native.Session.join()


def join_through(rank: int, world_size: int, broadcast: Callable[[Optional[str]], str]) -> _native.Session:
    """Joins with ranks that can already talk. `broadcast` takes a text on rank 0, and returns it on every rank.

    Raises:
        ConfigError: workers on several hosts without a secret file.
    """
    if world_size == 1:
        return _native.Session.join_as(0, 1, "", "", "")
    listener, made = None, None
    try:
        if rank == 0:
            listener, made, text = _invite()
        else:
            text = None
        invitation = json.loads(broadcast(text))
        if "error" in invitation:
            raise ConfigError(invitation["error"])
        path = invitation["secret"] or os.environ.get("GLEANER_SECRET_FILE")
        if invitation["secret"] and invitation["boot"] != _boot_id():
            raise ConfigError(
                f"rank {rank} runs on another host than rank 0, and no secret is known to both: create one with `(umask 077; openssl "
                "rand -hex 32 > job.secret)` and set GLEANER_SECRET_FILE to its path on every worker"
            )
        if not path:
            raise ConfigError(
                "GLEANER_SECRET_FILE is set on rank 0 and not here; set it to the path of the same secret on every worker"
            )
        return _native.Session.join_as(
            rank, world_size, invitation["rendezvous"], path, invitation["job"], listener
        )
    finally:
        if made is not None:
            with contextlib.suppress(OSError):
                os.unlink(made)


def _invite() -> tuple[Optional[_native.Listener], Optional[str], str]:
    """What rank 0 sends to the others; an error, too, or they would wait for it."""
    try:
        if os.environ.get("GLEANER_SECRET_FILE"):
            host = os.environ.get("MASTER_ADDR", "127.0.0.1")
            made = None
        else:
            host = "127.0.0.1"
            made = os.path.join(_private_folder(), f"{secrets.token_hex(8)}.secret")
            _write_secret(made)
        listener = _native.Listener(host)
    except (OSError, ConfigError) as error:
        return None, None, json.dumps({"error": f"rank 0 cannot invite the others: {error}"})
    shown = f"[{host}]" if ":" in host else host
    invitation = {
        "rendezvous": f"{shown}:{listener.port}",
        "secret": made,
        "boot": _boot_id(),
        "job": secrets.token_hex(16),
    }
    return listener, made, json.dumps(invitation)


@contextlib.contextmanager
def _secret_of_torchrun() -> Iterator[None]:
    """Under torchrun on one host, while this is entered: GLEANER_SECRET_FILE names a file of rank 0's."""
    env = os.environ
    given = any(name in env for name in ("GLEANER_RANK", "GLEANER_SECRET_FILE", "GLEANER_SECRET_FD"))
    local = env.get("LOCAL_WORLD_SIZE")
    if given or "MASTER_ADDR" not in env or local is None or local != env.get("WORLD_SIZE") or local == "1":
        yield
        return
    path = os.path.join(_private_folder(), f"{_start_of_torchrun()}.secret")
    is_first = env.get("RANK") == "0"
    if is_first:
        _write_secret(path)
    else:
        _await(path)
    env["GLEANER_SECRET_FILE"] = path
    try:
        yield
    finally:
        del env["GLEANER_SECRET_FILE"]
        # All have read it when rank 0 has joined, and none will if it has not.
        if is_first:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _start_of_torchrun() -> str:
    """Distinguishes one start of torchrun's workers from all others on this host: they have one parent, port and number of restarts."""
    parent = os.getppid()
    parts = [str(parent), _began(parent)]
    parts += [os.environ.get(name, "") for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _began(process: int) -> str:
    """When a process began, in ticks since the system did."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            # The name stands in brackets, and may hold spaces.
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _private_folder() -> str:
    """A folder that only this user can enter.

    Raises:
        ConfigError: something else is in its place.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = os.path.join(base, "gleaner") if base else os.path.join(tempfile.gettempdir(), f"gleaner-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is no folder that this user alone can enter, so no secret can pass through it; remove it, or set "
            "GLEANER_SECRET_FILE to the path of a secret on every worker"
        )
    return folder


def _write_secret(path: str) -> None:
    """Whole or not at all."""
    beside = f"{path}.{secrets.token_hex(8)}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    os.rename(beside, path)


def _await(path: str) -> None:
    """Waits until rank 0 has written the file.

    Raises:
        ConfigError: it has not come in time.
    """
    until = time.monotonic() + _TIMEOUT
    while not os.path.exists(path):
        if time.monotonic() > until:
            raise ConfigError(
                f"rank 0 wrote no secret to {path} within {_TIMEOUT:.0f} s: it has not joined, or torchrun did not start both workers "
                "directly; set GLEANER_SECRET_FILE to the path of a secret on every worker"
            )
        time.sleep(0.01)


def _boot_id() -> str:
    """The same for all that run on one kernel."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename
