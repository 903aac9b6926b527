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


def _lets_threads_run(folder):
    """Rank 1 comes when rank 0 has counted to 100 in another thread, if it ever does."""
    session, counted, over = gleaner.session(), [0], threading.Event()
    done = os.path.join(folder, "done")

    def count():
        while not over.is_set():
            counted[0] += 1
            if counted[0] == 100:
                open(done, "w").close()
            time.sleep(0.001)

    if session.rank == 1:
        until = time.monotonic() + 20
        while not os.path.exists(done) and time.monotonic() < until:
            time.sleep(0.01)
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


def _waits(path):
    """Rank 0 waits for rank 1, which comes once there is a file."""
    session = gleaner.session()
    print("joined", flush=True)
    while session.rank == 1 and not os.path.exists(path):
        time.sleep(0.01)
    session.barrier()


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


def _fares():
    """One entry of a thousand in a step."""
    random = numpy.random.default_rng(1)
    with gleaner.Session.join() as session:
        gradients = session.gradients({"w": 1000}, k=1)
        early = gradients.health(0.9)
        for _ in range(69):
            gradients.ready("w", random.normal(size=1000).astype("f4"))
            gradients.wait()
        health = gradients.health(0.9)
        assert health.waits == health.waiting / health.delivered > 100 and health.density == 0.001, health
        return [early.looks, early.findings, health.looks, [finding.name for finding in health.findings], health.findings[0].sentence]


def _refuses():
    """What raised which exception with which sentence, and what was expected of both."""
    session, found = gleaner.Session.join(), []
    array = numpy.zeros(4, numpy.float32)
    gradients = session.gradients({"w": 4})

    def refuses(expected, words, call):
        try:
            call()
        except Exception as error:
            found.append([words, type(error).__name__, str(error), expected, words])
        else:
            found.append([words, "nothing", "", expected, words])

    for expected, words, arguments in [
        ("MethodError", "density is 0", {"method": "spardl", "density": 0}),
        ("MethodError", "density is 1.5", {"method": "spardl", "density": 1.5}),
        ("MethodError", "density is NaN", {"method": "spardl", "density": numpy.nan}),
        ("MethodError", "neither density nor k", {"method": "ring", "density": 0.1}),
        ("MethodError", "rings", {"method": "rings"}),
        ("MethodError", "teams", {"method": "ring", "teams": 2}),
        ("MethodError", "expected true or false", {"mask_momentum": "yes"}),
        ("MethodError", "without momentum correction", {"mask_momentum": True}),
        ("MethodError", "did you mean momentum_correction?", {"momentum": 0.9}),
        ("MethodError", "no method has densty", {"densty": 0.1}),
        ("ValueError", "median", {"op": "median"}),
        ("MethodError", "max", {"op": "max", "method": "spardl"}),
    ]:
        refuses(expected, words, lambda: session.all_reduce(array, **arguments))
    refuses("UnsupportedError", "int64", lambda: session.all_reduce(numpy.arange(3)))
    refuses("UnsupportedError", "the other order", lambda: session.all_reduce(array.astype(">f4")))
    refuses("LayoutError", "cannot take the result", lambda: session.all_reduce(array, out=numpy.zeros(5, numpy.float32)))
    refuses("LayoutError", "no parameter named 'x'", lambda: gradients.ready("x", array))
    refuses("LayoutError", "'w' has 3 entries", lambda: gradients.ready("w", array[:3]))
    refuses("MethodError", "momentum of the optimiser is 1", lambda: gradients.health(1.0))
    session.leave()
    refuses("SessionLeft", "was left", session.barrier)
    refuses("SessionLeft", "was left", lambda: gradients.ready("w", array))
    return found


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
        with tempfile.TemporaryDirectory() as folder:
            counted, _ = jobs.run("test_numpy:_lets_threads_run", 2, folder)
        self.assertGreaterEqual(counted, 100)

    def test_a_checkpoint_goes_on_bit_by_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            for before, after in jobs.run("test_numpy:_checkpoints", 2, folder):
                self.assertEqual(before, after)

    def test_a_training_that_fares_badly_gets_the_reasons(self):
        for early, none, looks, names, sentence in jobs.run("test_numpy:_fares", 2):
            self.assertEqual((early, none, looks, names), (0, [], 4, ["stale", "momentum"]))
            self.assertIn("most of an update is of old gradients", sentence)

    def test_what_cannot_be_is_refused(self):
        for found in jobs.run("test_numpy:_refuses", 1):
            for what, kind, sentence, expected, words in found:
                with self.subTest(what):
                    self.assertEqual(kind, expected)
                    self.assertIn(words, sentence)

    def test_options_are_set_by_their_names(self):
        levers = {"momentum_correction": numpy.float32(0.9), "ef21": 1, "dense_below": numpy.int64(300), "complete_sums": numpy.True_, "mask_momentum": None, "deliver_all_every": 100}
        method = str(gleaner.Method("spardl", density=0.1, values="qsgd4", teams=2, sag="bruck", deliver_all_at=[7, 9], **levers))
        for words in ["qsgd4", "EF21", "0.9", "300 entries", "sums completed", "every 100 steps", "steps 7, 9"]:
            self.assertIn(words, method)
        plain = str(gleaner.Method("spardl", density=0.1))
        self.assertEqual(plain, str(gleaner.Method("spardl", density=0.1, deliver_all_at=[], teams=None)))
        self.assertIn("0.999", str(gleaner.Method("spardl", density=0.1, residual_decay=0.999)))
        self.assertTrue(gleaner.Method("spardl", density=0.1, norm_share=0.5).corrects)

    def test_stubs_are_what_the_native_half_has(self):
        import ast

        from gleaner import _native

        with open(os.path.join(os.path.dirname(gleaner.__file__), "_native.pyi"), encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for kind in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
            stubs = {node.name for node in kind.body if isinstance(node, ast.FunctionDef)} - {"__new__"}
            found = {name for name in vars(getattr(_native, kind.name)) if not name.startswith("_")}
            self.assertEqual(stubs, found, kind.name)


@unittest.skipIf(numpy is None, "SKIPPED: NumPy is not installed")
class LateSgd(unittest.TestCase):
    """Momentum that counts how long entries have waited. It joins no job."""

    def zeros(self, shape=2):
        return [numpy.zeros(shape, numpy.float32) for _ in range(3)]

    def test_an_entry_that_waited_is_overdue(self):
        weights, velocities, waited = self.zeros((1, 2))
        for gradient in ([0.0, 1.0], [2.0, 0.0]):
            gleaner.late_sgd_step(weights, velocities, waited, numpy.array(gradient, "f4"), 1.0, 0.5)
        # (1 - 1/4) / (2 * 1/2) = 3/4 of the first goes into the velocity, and twice the rest is applied.
        self.assertEqual((weights.tolist(), velocities.tolist(), waited.tolist()), ([[-2.5, -1.5]], [[1.5, 0.5]], [[0.0, 1.0]]))

    def test_entries_of_every_step_are_stepped_as_usual(self):
        random = numpy.random.default_rng(1)
        for nesterov in (False, True):
            weights, velocities, waited = self.zeros(50)
            expected, velocity = numpy.zeros(50), numpy.zeros(50)
            for _ in range(5):
                gradient = random.normal(size=50).astype("f4")
                gleaner.late_sgd_step(weights, velocities, waited, gradient, 0.1, 0.9, weight_decay=0.01, nesterov=nesterov)
                decayed = gradient + 0.01 * expected
                velocity = 0.9 * velocity + decayed
                expected -= 0.1 * (decayed + 0.9 * velocity if nesterov else velocity)
            numpy.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)

    def test_late_entries_are_no_further_behind_than_what_waits(self):
        weights, velocities, waited = self.zeros()
        for step in range(1, 201):
            late = 20.0 if step % 20 == 0 else 0.0
            gleaner.late_sgd_step(weights, velocities, waited, numpy.array([1.0, late], "f4"), 0.1, 0.9)
        self.assertLess(abs(weights[0] - weights[1]), 0.1)

    def test_what_cannot_be_is_refused(self):
        weights, velocities, waited = self.zeros()
        gradient, frozen = numpy.ones(2, numpy.float32), numpy.zeros(2, numpy.float32)
        frozen.flags.writeable = False
        for kind, words, arrays, options in [
            (gleaner.LayoutError, "parameters cannot take the result", (weights.astype("f8"), velocities, waited, gradient), {}),
            (gleaner.LayoutError, "parameters cannot take the result", ([0.0, 0.0], velocities, waited, gradient), {}),
            (gleaner.LayoutError, "velocities cannot take the result", (weights, numpy.zeros(4, "f4")[::2], waited, gradient), {}),
            (gleaner.LayoutError, "velocities cannot take the result", (weights, velocities.reshape(1, 2), waited, gradient), {}),
            (gleaner.LayoutError, "steps waited cannot take the result", (weights, velocities, frozen, gradient), {}),
            (gleaner.LayoutError, "has 3 entries; the parameters have 2", (weights, velocities, waited, numpy.ones(3, "f4")), {}),
            (gleaner.LayoutError, "share memory", (weights, velocities, velocities, gradient), {}),
            (gleaner.LayoutError, "share memory", (weights, velocities, waited, weights), {}),
            (gleaner.UnsupportedError, "gradient is of float64", (weights, velocities, waited, numpy.ones(2)), {}),
            (gleaner.MethodError, "rate: expected a number from 0 on, found NaN", (weights, velocities, waited, gradient), {"rate": numpy.nan}),
            (gleaner.MethodError, "momentum: expected .*, found 1", (weights, velocities, waited, gradient), {"momentum": 1.0}),
            (gleaner.MethodError, "weight_decay: expected .*, found -1", (weights, velocities, waited, gradient), {"weight_decay": -1.0}),
        ]:
            with self.subTest(words), self.assertRaisesRegex(kind, words):
                gleaner.late_sgd_step(*arrays, **{"rate": 0.1, "momentum": 0.9, **options})
        self.assertEqual((weights.tolist(), velocities.tolist(), waited.tolist()), ([0.0, 0.0],) * 3)


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

    def test_an_exception_is_reported_to_all_ranks(self):
        # In a Python of its own, and in a process of multiprocessing, which ends in another way.
        for job in (jobs.Job.of_program(jobs.program_of("test_numpy:_raises"), 2), jobs.Job("test_numpy:_raises")):
            first, second = job.ends()
            sentence, rank = first.result
            self.assertEqual(rank, 1)
            self.assertIn("ValueError: the data is gone", sentence)
            self.assertNotEqual(second.code, 0)

    def test_a_rank_that_ends_early_leaves_no_other_waiting(self):
        for job in (jobs.Job.of_program(jobs.program_of("test_numpy:_ends"), 2), jobs.Job("test_numpy:_ends")):
            first, second = job.ends()
            sentence, rank = first.result
            self.assertEqual(rank, 1)
            self.assertIn("left the job", sentence)
            self.assertEqual(second.code, 0)

    def test_ctrl_c_ends_a_wait(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "come")
            job = jobs.Job("test_numpy:_waits", 2, path)
            job.wait_for(0, "joined")
            job.wait_for(1, "joined")
            job.send(0, signal.SIGINT)
            job.wait_for_end(0)
            with open(path, "w", encoding="ascii"):
                first, second = job.ends()
            self.assertIn("KeyboardInterrupt", first.err)
            self.assertNotEqual(first.code, 0)
            # The other is notified.
            self.assertIn("JobFailed: rank 0 failed", second.err)

    def test_a_rank_that_is_killed_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            job = jobs.Job("test_numpy:_waits", 2, os.path.join(folder, "never"))
            job.wait_for(0, "joined")
            job.wait_for(1, "joined")
            job.send(1, signal.SIGKILL)
            first, _ = job.ends()
            self.assertNotEqual(first.code, 0)
            self.assertIn("JobFailed: rank 1 failed", first.err)

    def test_a_forked_process_gets_a_sentence(self):
        for said in jobs.run("test_numpy:_forks"):
            self.assertIn("was forked from it", said)


if __name__ == "__main__":
    unittest.main()
