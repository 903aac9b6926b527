"""What can go wrong. Every exception's text is a sentence that says what was expected, what was found, and what to do."""

from __future__ import annotations

from typing import Optional

__all__ = [
    "Error",
    "ConfigError",
    "JoinError",
    "JobFailed",
    "Cancelled",
    "OutOfMemory",
    "LayoutError",
    "MethodError",
    "CheckpointError",
    "UnsupportedError",
    "SessionLeft",
    "ForkedError",
]


class Error(Exception):
    """Whatever Gleaner reports."""


class ConfigError(Error):
    """Rank, world size, rendezvous or secret are missing or contradict each other."""


class JoinError(Error):
    """The workers did not come together."""


class JobFailed(Error):
    """A worker died, fell silent, left or violated the protocol: all ranks name the same one. The session is of no further use.

    Attributes:
        rank: the rank that is to blame.
        step: the step in which it was noticed, if in one.
        reason: a sentence about what that rank did.
    """

    def __init__(self, sentence: str, rank: int, step: Optional[int], reason: str) -> None:
        super().__init__(sentence, rank, step, reason)
        self.rank = rank
        self.step = step
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[0])


class Cancelled(Error):
    """A rank cancelled the step: nothing was delivered, and nothing is lost. The job goes on.

    Attributes:
        rank: the rank that asked.
        step: the step, counted from 0.
    """

    def __init__(self, sentence: str, rank: int, step: int) -> None:
        super().__init__(sentence, rank, step)
        self.rank = rank
        self.step = step

    def __str__(self) -> str:
        return str(self.args[0])


class OutOfMemory(Error, MemoryError):
    """A GPU had not enough memory. A gradient that was to be added is as if it had not been given, and may be given again. A step that was
    waited for is undone on all ranks: its gradients wait for the next step. The job goes on."""


class LayoutError(Error, ValueError):
    """A name, a length or an order of calls that does not fit the parameters that the ranks agreed on."""


class MethodError(Error, ValueError):
    """An invalid method, or an invalid option of one."""


class CheckpointError(Error):
    """A state that cannot be saved, or from which this job cannot go on."""


class UnsupportedError(Error, TypeError):
    """Something that Gleaner does not do, named."""


class SessionLeft(Error):
    """A call on a session that was left, or on what was made of it."""

    def __init__(self, sentence: str = "this session was left; join again before its calls are used") -> None:
        super().__init__(sentence)


class ForkedError(Error):
    """A call in a process that was forked from the one that joined.

    Attributes:
        joined: the number of the process that joined the job.
        process: the number of this one.
    """

    def __init__(self, joined: int, process: int) -> None:
        super().__init__(joined, process)
        self.joined = joined
        self.process = process

    def __str__(self) -> str:
        return (
            f"process {self.joined} joined the job and this is process {self.process}, which was forked from it and has none of its "
            "threads; make the call in the process that joined, or start this one by 'spawn'"
        )
