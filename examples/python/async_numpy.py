"""Linear regression in NumPy and asyncio: gradients are exchanged while the loop prepares the next batch.

    gleaner launch --workers 2 -- python examples/python/async_numpy.py
"""

import asyncio

import numpy

import gleaner

INPUTS, OUTPUTS, BATCH, STEPS = 64, 8, 32, 300


def batches(truth, random):
    """What a reader of files or of a network would give."""

    async def one():
        await asyncio.sleep(0)
        inputs = random.normal(size=(BATCH, INPUTS)).astype(numpy.float32)
        return inputs, inputs @ truth

    return one


async def train(session):
    truth = numpy.random.default_rng(0).normal(size=(INPUTS, OUTPUTS)).astype(numpy.float32)
    batch = batches(truth, numpy.random.default_rng(1 + session.rank))
    weights, bias = numpy.zeros((INPUTS, OUTPUTS), numpy.float32), numpy.zeros(OUTPUTS, numpy.float32)
    inputs, targets = await batch()
    for step in range(STEPS):
        error = inputs @ weights + bias - targets
        # Two exchanges are under way at once. The one of the weights delivers a tenth of its entries in each step.
        of_bias = session.all_reduce_async(error.mean(0), name="bias")
        of_weights = session.all_reduce_async(inputs.T @ error / BATCH, name="weights", method="spardl", density=0.1)
        # Meanwhile the next batch.
        inputs, targets = await batch()
        bias -= 0.2 * await of_bias
        weights -= 0.05 * await of_weights
    return float(numpy.abs(weights - truth).max()), float((error**2).mean())


def main():
    with gleaner.Session.join() as session:
        away, loss = asyncio.run(train(session))
        if session.rank == 0:
            print(f"{session.world_size} workers: loss {loss:.6f}, weights at most {away:.4f} away after {STEPS} steps")


if __name__ == "__main__":
    main()
