"""Leaving when the interpreter ends: with a leave message, or with the exception that ended the program."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import weakref
from multiprocessing import util
from typing import Optional, Protocol

from gleaner.errors import Error


class Leaves(Protocol):
    """A session, as far as this file is concerned."""

    def leave(self) -> None: ...

    def abort(self, reason: str) -> None: ...


_sessions: "weakref.WeakSet[Leaves]" = weakref.WeakSet()
_process: Optional[int] = None


def remember(session: Leaves) -> None:
    """Leaves this session when the interpreter ends, unless it was left before."""
    global _process
    _sessions.add(session)
    if _process != os.getpid():
        _process = os.getpid()
        atexit.register(_end)
        # A child of multiprocessing ends without the functions of atexit.
        util.Finalize(None, _end, exitpriority=100)


def why_it_ended() -> Optional[str]:
    """What ended the program, if it was an exception that was not caught."""
    error = sys.exc_info()[1]
    if error is None and not hasattr(sys, "ps1"):
        error = getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        error = error.__context__ or error
    if error is None:
        return None
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _end() -> None:
    if _process != os.getpid():
        return
    reason = why_it_ended()
    for session in list(_sessions):
        try:
            if reason is None:
                session.leave()
            else:
                session.abort(reason)
        except Error:
            # The job has failed before, and the callers that waited for it have got the reason.
            pass
