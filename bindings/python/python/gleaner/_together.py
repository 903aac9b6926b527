"""Calls of all ranks beside the exchange of gradients: equal parameters at the start, means of numbers, shares of data, and the step to
go on from."""

from __future__ import annotations

import operator
import struct
from typing import Any, Iterable, List, Optional, Set

import numpy

from gleaner import _arrays
from gleaner._membership import Membership
from gleaner.errors import LayoutError

# Steps in a note, half of what it has room for.
_STEPS = 1 << 16


class Together(Membership):
    """What a trainer asks of its session besides the exchange. All ranks make these calls together, but for `shard`."""

    def broadcast(self, array: Any) -> "numpy.ndarray[Any, Any]":
        """Gives every rank the values of rank 0, bit by bit, such as the parameters before the first step.

        Args:
            array: of a type that `all_reduce` takes, contiguous; the values are written to it.

        Returns:
            The array.

        Raises:
            JobFailed: the job has failed.
            LayoutError: on every rank, where a rank has another shape or type; here, where the array cannot be written to.
            UnsupportedError: an array of another type.
        """
        values = _arrays.writable(array, _arrays.contiguous(array, "the array"), "the array of broadcast()")
        own = f"{values.dtype.name} of shape {values.shape}"
        kinds = [note.decode() for note in self.all_gather(own.encode())]
        # Every rank knows all kinds, so all of them get the same result.
        for rank, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise LayoutError(f"broadcast() of {kinds[0]}, where rank {rank} has {kind}; expected the same on every rank")
        if values.size > 0:
            self.native.broadcast(_arrays.address(values), values.nbytes, 0)
        return values

    def mean(self, number: float) -> float:
        """The mean of a number over the ranks, the same bits on each, for example of a loss for a log.

        Raises:
            JobFailed: the job has failed.
            TypeError, ValueError: here, what is no number.
        """
        notes = self.all_gather(struct.pack("<d", float(number)))
        total = 0.0
        # In the order of the ranks, and not by sum(), whose rounding depends on the version of Python.
        for note in notes:
            total += struct.unpack("<d", note)[0]
        return total / len(notes)

    def shard(self, n: int) -> range:
        """Which of n samples are this rank's. The ranges of all ranks are disjoint, cover all samples, and differ by one sample at most
        in length."""
        each, longer = divmod(n, self.world_size)
        begin = self.rank * each + min(self.rank, longer)
        return range(begin, begin + each + (self.rank < longer))

    def newest_common(self, steps: Iterable[int]) -> Optional[int]:
        """The newest step that is in the lists of all ranks, such as the steps of which each has a checkpoint; none if there is none. Of
        a longer list the newest 65,536 steps count.

        Raises:
            JobFailed: the job has failed.
            TypeError, ValueError: here, what is no number of a step.
        """
        newest = sorted({operator.index(step) for step in steps}, reverse=True)[:_STEPS]
        for step in newest:
            if not 0 <= step < 1 << 64:
                raise ValueError(f"newest_common() of step {step}; expected whole numbers from 0 on, of 64 bits")
        notes = self.all_gather(struct.pack(f"<{len(newest)}Q", *newest))
        of_ranks: List[Set[int]] = [{step for (step,) in struct.iter_unpack("<Q", note)} for note in notes]
        return max(set.intersection(*of_ranks), default=None)
