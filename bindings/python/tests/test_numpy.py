"""NumPy arrays among two and three workers."""

import asyncio
import os
import signal
import tempfile
import threading
import time
import unittest

import jobs

try:
    import numpy
except ImportError:
    numpy = None

import gleaner


# What workers do.


def _reduces():
    rank, found = gleaner.session().rank, {}
    for kind in ("float32", "float64", "float16"):
        array = numpy.arange(6, dtype=kind).reshape(2, 3) + rank
        for op in ("mean", "sum", "max", "min", "product"):
            result = gleaner.all_reduce(array, op=op)
            assert result.dtype == array.dtype and result.shape == array.shape
            found[f"{kind} {op}"] = result.tolist()
    out = numpy.ones(3, numpy.float32) * rank
    assert gleaner.all_reduce(out, op="sum", out=out) is out
    found["out"] = out.tolist()
    # Every second entry, which is copied first.
    strided = numpy.arange(10, dtype=numpy.float64)[::2]
    found["strided"] = gleaner.all_reduce(strided).tolist()
    return found


def _drains(density, steps):
    """What a sparse method delivers in all, once gradients are zero."""
    session = gleaner.session()
    random = numpy.random.default_rng(session.rank)
    given, delivered = numpy.zeros(500), numpy.zeros(500)
    for step in range(steps):
        gradient = random.normal(size=500) if step < 5 else numpy.zeros(500)
        given += gradient
        delivered += session.all_reduce(gradient, name="g", method="spardl", density=density)
    residual = session.residual(gradient, name="g", method="spardl", density=density)
    return [given.tolist(), delivered.tolist(), residual.tolist()]


def _asynchronous():
    session = gleaner.session()

    async def both():
        first = session.all_reduce_async(numpy.full(4, 1.0 + session.rank), name="first")
        second = session.all_reduce_async(numpy.full(3, 10.0 * session.rank), name="second")
        a, b = await asyncio.gather(first, second)
        return [a.tolist(), b.tolist(), first.done()]

    return asyncio.run(both())


def _lets_threads_run():
    """Rank 1 is late, and rank 0 counts meanwhile in another thread."""
    session, counted, over = gleaner.session(), [0], threading.Event()

    def count():
        while not over.is_set():
            counted[0] += 1
            time.sleep(0.001)

    if session.rank == 1:
        time.sleep(1.0)
        session.barrier()
        return 0
    thread = threading.Thread(target=count)
    thread.start()
    session.barrier()
    over.set()
    thread.join()
    return counted[0]


def _differs():
    try:
        gleaner.all_reduce(numpy.zeros(3 + gleaner.session().rank, numpy.float32), name="x")
    except gleaner.JobFailed as error:
        return [str(error), error.rank]
    return None


def _is_nan():
    values = numpy.ones(4, numpy.float32)
    if gleaner.session().rank == 1:
        values[2] = numpy.nan
    try:
        gleaner.all_reduce(values, name="x")
    except gleaner.JobFailed as error:
        return [str(error), error.rank]
    return None


def _skips():
    values = numpy.ones(4, numpy.float32)
    if gleaner.session().rank == 1:
        values[2] = numpy.inf
    handle = gleaner.all_reduce_async(values, name="x", on_nonfinite="skip")
    return [handle.wait().tolist(), handle.skipped, gleaner.all_reduce(numpy.ones(4, numpy.float32)).tolist()]


def _raises():
    session = gleaner.session()
    if session.rank == 1:
        raise ValueError("the data is gone")
    try:
        session.barrier()
    except gleaner.JobFailed as error:
        return [str(error), error.rank]
    return None


def _waits():
    session = gleaner.session()
    print("joined", flush=True)
    if session.rank == 0:
        session.barrier()
    else:
        time.sleep(60)


def _ends():
    """Rank 1 ends without a word, and rank 0 waits."""
    session = gleaner.session()
    if session.rank == 1:
        return None
    try:
        session.barrier()
    except gleaner.JobFailed as error:
        return [str(error), error.rank]
    return None


def _forks():
    session = gleaner.session()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            session.barrier()
        except gleaner.ForkedError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 1000).decode()
    os.waitpid(child, 0)
    session.barrier()
    return said


def _checkpoints(folder):
    session = gleaner.session()
    random = numpy.random.default_rng(session.rank)
    gradients = session.gradients({"w": 40, "b": 4}, density=0.1)
    path = os.path.join(folder, f"{session.rank}.safetensors")
    digests = []
    given = [{"w": random.normal(size=40).astype("f4"), "b": random.normal(size=4).astype("f4")} for _ in range(6)]

    def step(number, gradients):
        for name in ("b", "w"):
            gradients.ready(name, given[number][name])
        return gradients.wait().digest()

    for number in range(3):
        step(number, gradients)
    gradients.save(path)
    digests.append([step(number, gradients) for number in range(3, 6)])
    again = session.gradients({"w": 40, "b": 4}, density=0.1)
    again.load(path)
    assert again.step == 3
    digests.append([step(number, again) for number in range(3, 6)])
    return digests


@unittest.skipIf(numpy is None, "SKIPPED: NumPy is not installed")
class Arrays(unittest.TestCase):
    def test_every_type_and_reduction(self):
        for workers in (1, 2, 3):
            base = numpy.arange(6.0).reshape(2, 3)
            each = numpy.stack([base + rank for rank in range(workers)])
            for found in jobs.run("test_numpy:_reduces", workers):
                for kind in ("float32", "float64", "float16"):
                    expected = {"mean": each.mean(0), "sum": each.sum(0), "max": each.max(0), "min": each.min(0), "product": each.prod(0)}
                    for op, values in expected.items():
                        numpy.testing.assert_allclose(found[f"{kind} {op}"], values, rtol=1e-3, err_msg=f"{kind} {op}")
                self.assertEqual(found["out"], [sum(range(workers))] * 3)
                self.assertEqual(found["strided"], [0.0, 2.0, 4.0, 6.0, 8.0])

    def test_nothing_is_lost(self):
        for steps in (5, 400):
            ranks = jobs.run("test_numpy:_drains", 3, 0.05, steps)
            given = sum(numpy.array(rank[0]) for rank in ranks)
            residual = sum(numpy.array(rank[2]) for rank in ranks)
            for rank in ranks:
                numpy.testing.assert_array_equal(rank[1], ranks[0][1])
                numpy.testing.assert_allclose(3 * numpy.array(rank[1]) + residual, given, atol=1e-9)
        self.assertEqual(numpy.count_nonzero(residual), 0)

    def test_several_at_once_in_asyncio(self):
        for first, second, done in jobs.run("test_numpy:_asynchronous"):
            self.assertEqual((first, second, done), ([1.5] * 4, [5.0] * 3, True))

    def test_other_threads_run_while_one_waits(self):
        counted, _ = jobs.run("test_numpy:_lets_threads_run")
        self.assertGreater(counted, 20)

    def test_a_checkpoint_goes_on_bit_by_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            for before, after in jobs.run("test_numpy:_checkpoints", 2, folder):
                self.assertEqual(before, after)

    def test_what_cannot_be_is_refused(self):
        session = gleaner.Session.join()
        self.addCleanup(session.leave)
        array = numpy.zeros(4, numpy.float32)
        for arguments, kind, words in [
            ({"method": "spardl", "density": 0}, gleaner.MethodError, "density is 0"),
            ({"method": "spardl", "density": 1.5}, gleaner.MethodError, "density is 1.5"),
            ({"method": "ring", "density": 0.1}, gleaner.MethodError, "neither density nor k"),
            ({"method": "rings"}, gleaner.MethodError, "rings"),
            ({"method": "ring", "teams": 2}, gleaner.MethodError, "teams"),
            ({"op": "median"}, ValueError, "median"),
            ({"op": "max", "method": "spardl"}, gleaner.MethodError, "max"),
        ]:
            with self.subTest(arguments), self.assertRaises(kind) as raised:
                session.all_reduce(array, **arguments)
            self.assertIn(words, str(raised.exception))
        with self.assertRaisesRegex(gleaner.UnsupportedError, "int64"):
            session.all_reduce(numpy.arange(3))
        with self.assertRaisesRegex(gleaner.LayoutError, "cannot take the result"):
            session.all_reduce(array, out=numpy.zeros(5, numpy.float32))
        gradients = session.gradients({"w": 4})
        with self.assertRaisesRegex(gleaner.LayoutError, "no parameter named 'x'"):
            gradients.ready("x", array)
        with self.assertRaisesRegex(gleaner.LayoutError, "'w' has 3 entries"):
            gradients.ready("w", array[:3])
        session.leave()
        with self.assertRaises(gleaner.SessionLeft):
            session.barrier()


@unittest.skipIf(numpy is None, "SKIPPED: NumPy is not installed")
class Failures(unittest.TestCase):
    def test_ranks_that_differ_hear_the_difference(self):
        for sentence, rank in jobs.run("test_numpy:_differs"):
            self.assertEqual(rank, 1)
            self.assertIn("4 entries", sentence)

    def test_values_that_are_not_finite_name_the_rank(self):
        for sentence, rank in jobs.run("test_numpy:_is_nan"):
            self.assertEqual(rank, 1)
            self.assertIn("NaN at entry 2", sentence)

    def test_a_step_that_is_not_finite_is_left_out_on_all_ranks(self):
        for result, skipped, after in jobs.run("test_numpy:_skips"):
            self.assertEqual((result, skipped, after), ([0.0] * 4, 1, [1.0] * 4))

    def test_an_exception_is_told_to_all_ranks(self):
        first, second = jobs.Job("test_numpy:_raises").ends()
        sentence, rank = first.result
        self.assertEqual(rank, 1)
        self.assertIn("ValueError: the data is gone", sentence)
        self.assertNotEqual(second.code, 0)

    def test_a_rank_that_ends_early_leaves_nobody_waiting(self):
        first, second = jobs.Job("test_numpy:_ends").ends()
        sentence, rank = first.result
        self.assertEqual(rank, 1)
        self.assertIn("left the job", sentence)
        self.assertEqual(second.code, 0)

    def test_ctrl_c_ends_a_wait(self):
        job = jobs.Job("test_numpy:_waits")
        job.wait_for(0, "joined")
        job.wait_for(1, "joined")
        job.processes[0].send_signal(signal.SIGINT)
        began = time.monotonic()
        out, err = job.processes[0].communicate(timeout=60)
        self.assertLess(time.monotonic() - began, 30)
        self.assertIn("KeyboardInterrupt", err)
        job.processes[1].kill()
        job.processes[1].communicate()

    def test_a_rank_that_is_killed_is_named(self):
        job = jobs.Job("test_numpy:_waits")
        job.wait_for(0, "joined")
        job.wait_for(1, "joined")
        job.processes[1].send_signal(signal.SIGKILL)
        first, _ = job.ends()
        self.assertNotEqual(first.code, 0)
        self.assertIn("JobFailed: rank 1 failed", first.err)

    def test_a_forked_process_gets_a_sentence(self):
        for said in jobs.run("test_numpy:_forks"):
            self.assertIn("was forked from it", said)


if __name__ == "__main__":
    unittest.main()
