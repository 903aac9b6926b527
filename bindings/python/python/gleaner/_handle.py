"""An all-reduce that was started."""

from __future__ import annotations

import asyncio
from typing import Any, Generator, Optional, Tuple

import numpy

from gleaner import _arrays, _native


class Handle:
    """An all-reduce that was started: `wait` for it, or `await` it in asyncio.

    Dropping it abandons the result only: the step is completed here as on all other ranks.
    """

    def __init__(
        self,
        native: _native.Handle,
        name: str,
        shape: Tuple[int, ...],
        dtype: "numpy.dtype[Any]",
        workers: Optional[int],
        into: "Optional[numpy.ndarray[Any, Any]]",
    ) -> None:
        self._native = native
        self._name = name
        self._shape = shape
        self._dtype = dtype
        self._workers = workers
        self._into = into
        self._result: "Optional[numpy.ndarray[Any, Any]]" = None
        self._error: Optional[BaseException] = None
        #: The rank for whose values the step was left out on all ranks, once it is known.
        self.skipped: Optional[int] = None

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._result is not None or self._error is not None or self._native.done()

    def cancel(self) -> None:
        """Asks all ranks to give the step up. `wait` says the result, here as on every other rank."""
        self._native.cancel()

    def wait(self) -> "numpy.ndarray[Any, Any]":
        """The result: an array of the shape and type that was given.

        Raises:
            Cancelled: a rank has cancelled the step.
            JobFailed: the job has failed.
        """
        if self._error is not None:
            raise self._error
        if self._result is None:
            try:
                update = self._native.wait()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._error = error
                raise
            skipped = update.skipped
            self.skipped = None if skipped is None else skipped[0]
            result = numpy.empty(self._shape, self._dtype) if self._into is None else self._into
            update.copy_to(self._name, _arrays.address(result), result.size, self._workers)
            self._result = result
        return self._result

    def __await__(self) -> Generator[Any, None, "numpy.ndarray[Any, Any]"]:
        # A thread of the loop's executor waits, and holds no lock meanwhile.
        return asyncio.get_running_loop().run_in_executor(None, self.wait).__await__()
