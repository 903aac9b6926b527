"""Momentum that counts how long entries have waited, for NumPy arrays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy

from gleaner import _arrays, _native
from gleaner.errors import LayoutError, UnsupportedError

Array = Any


def late_sgd_step(
    parameters: Array,
    velocities: Array,
    waited: Array,
    gradient: Array,
    rate: float,
    momentum: float,
    *,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> None:
    """Steps parameters along a mean gradient, in place, by stochastic gradient descent whose momentum counts the steps that entries have
    waited in residuals.

    An entry that waited w steps is taken for the sum of w gradients, most of which is overdue: the share (1 - momentum**w) / (w * (1 - momentum))
    goes into the velocity, and the rest is applied at once, with all that it amounts to, 1 / (1 - momentum). An entry has come where the gradient
    is not 0. With a dense method, whose entries of 0 have not waited, use the usual momentum.

    Args:
        parameters: of float32 and any shape, contiguous.
        velocities: of the same shape and type, 0 at first; what the last call left. Keep them in checkpoints, and the steps waited, too.
        waited: of the same shape and type, the steps since an entry last came, 0 at first.
        gradient: the mean as `Update.values` gives it, of float32, and of any shape with as many entries.
        rate: the learning rate, at least 0.
        momentum: how much of the last velocity the next one keeps, from 0 to below 1.
        weight_decay: how strongly parameters are pulled towards zero, at least 0.
        nesterov: whether the step looks ahead along the new velocity.

    Raises:
        LayoutError: arrays of other shapes or types, with gaps, that may not be written to, or that share memory.
        UnsupportedError: a gradient of another type.
        MethodError: an option out of its range.
    """
    mean = _arrays.contiguous(gradient, "the gradient")
    if mean.dtype != numpy.float32:
        raise UnsupportedError(f"the gradient is of {mean.dtype.name}; expected float32")
    shape, entries = numpy.shape(parameters), numpy.size(parameters)
    if mean.size != entries:
        raise LayoutError(f"the gradient has {mean.size} entries; the parameters have {entries}")
    mean = mean.reshape(shape)
    arrays = [
        _arrays.writable(parameters, mean, "the array of parameters"),
        _arrays.writable(velocities, mean, "the array of velocities"),
        _arrays.writable(waited, mean, "the array of steps waited"),
        mean,
    ]
    # Of contiguous arrays the bounds say it.
    if any(numpy.may_share_memory(*pair) for pair in itertools.combinations(arrays, 2)):
        raise LayoutError("parameters, velocities, steps waited and gradient share memory; expected an array of its own for each")
    one, two, three, four = map(_arrays.address, arrays)
    _native.late_sgd_step((one, two, three, four), mean.size, float(rate), float(momentum), float(weight_decay), bool(nesterov))
