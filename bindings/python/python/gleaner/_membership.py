"""A worker's membership in a job, as far as no arrays are concerned."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import List, NamedTuple, Optional, Type, TypeVar

from gleaner import _ending, _native, _starting

_Self = TypeVar("_Self", bound="Membership")


class Traffic(NamedTuple):
    """What this worker sent and received so far, headers included."""

    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    links: int


class Membership:
    """A worker's membership in a job: what `Session` is for programs without NumPy."""

    def __init__(self, native: _native.Session) -> None:
        self.native = native
        _ending.remember(self)

    @classmethod
    def join(cls: Type[_Self]) -> _Self:
        """Joins the job that the environment describes: as started by `gleaner launch`, torchrun, Slurm or Open MPI. Without any of
        them the job is this one worker.

        Raises:
            ConfigError: an environment that is incomplete or contradicts itself.
            JoinError: workers that do not come together within the timeout.
        """
        return cls(_starting.join())

    @property
    def rank(self) -> int:
        """This worker's number, from 0 to world size - 1."""
        return self.native.rank

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return self.native.world_size

    @property
    def traffic(self) -> Traffic:
        """Bytes and messages that this worker sent and received, and links that it opened."""
        return Traffic(*self.native.traffic())

    def barrier(self) -> None:
        """Waits until all ranks are here.

        Raises:
            JobFailed: the job has failed.
        """
        self.native.barrier()

    def all_gather(self, note: bytes) -> List[bytes]:
        """Gives every rank the notes of all ranks, in the order of the ranks. A note has less than 1 MiB.

        Raises:
            JobFailed: the job has failed.
        """
        return self.native.all_gather(note)

    def leave(self) -> None:
        """Leaves the job, once the others have what they need of this rank. Calls after that raise `SessionLeft`."""
        self.native.leave()

    def abort(self, reason: str) -> None:
        """Ends the job on all ranks, whose next calls raise `JobFailed` with this rank and the reason; and leaves."""
        self.native.abort(reason)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if error is None:
            self.leave()
        else:
            self.abort(_ending.why_it_ended() or f"{type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.world_size}>"


_default: Optional[Membership] = None
_default_lock = threading.Lock()


def default() -> Membership:
    """The session of this process, which is joined by the first call. Without NumPy it has no arrays."""
    global _default
    with _default_lock:
        if _default is None or _default.native.is_left():
            try:
                from gleaner._session import Session
            except ImportError:
                _default = Membership.join()
            else:
                _default = Session.join()
        return _default
