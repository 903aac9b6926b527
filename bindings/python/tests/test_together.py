"""Calls of all ranks beside the exchange of gradients, among one to three workers."""

import unittest

import jobs

try:
    import numpy
except ImportError:
    numpy = None

import gleaner


# What workers do.


def _large(seed):
    """More than a note has room for."""
    return numpy.random.default_rng(seed).normal(size=200_001)


def _broadcasts():
    session, found = gleaner.session(), {}
    for kind in ("float32", "float64", "float16"):
        array = numpy.arange(6, dtype=kind).reshape(2, 3) + 10 * session.rank
        assert session.broadcast(array) is array
        found[kind] = array.tolist()
    found["large"] = session.broadcast(_large(session.rank)).tobytes() == _large(0).tobytes()
    found["none"] = session.broadcast(numpy.zeros((0, 4), numpy.float32)).size
    return found


def _differ():
    """The sentences, and what the job, which goes on, still does."""
    session, said = gleaner.session(), []
    for array in (numpy.zeros(4 + session.rank, numpy.float32), numpy.zeros(4, ("f4", "f8")[session.rank])):
        try:
            session.broadcast(array)
        except gleaner.LayoutError as error:
            said.append(str(error))
    return [said, session.mean(session.rank)]


def _refused():
    """What one rank alone can say of its array."""
    session, found = gleaner.session(), []
    frozen = numpy.zeros(4, numpy.float32)
    frozen.flags.writeable = False
    for array in (frozen, numpy.zeros(8, numpy.float32)[::2], [1.0, 2.0], numpy.arange(3)):
        try:
            session.broadcast(array)
        except gleaner.Error as error:
            found.append(type(error).__name__)
    return found


def _agrees():
    session = gleaner.session()
    rank = session.rank
    return {
        "mean": session.mean(0.1 * (rank + 1)),
        "shards": [list(session.shard(n)) for n in (0, 1, 7, 8)],
        "steps": [
            session.newest_common([10 + rank, 7, 3]),
            session.newest_common(step for step in (rank, rank + 1, rank + 2)),
            session.newest_common([5, 9] if rank == 0 else []),
            session.newest_common(range(70_000)),
        ],
    }


@unittest.skipIf(numpy is None, "SKIPPED: NumPy is not installed")
class Together(unittest.TestCase):
    def test_every_rank_gets_the_values_of_rank_0(self):
        for workers in (1, 3):
            for found in jobs.run("test_together:_broadcasts", workers):
                for kind in ("float32", "float64", "float16"):
                    self.assertEqual(found[kind], [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
                self.assertEqual((found["large"], found["none"]), (True, 0))

    def test_arrays_that_differ_are_refused_on_every_rank(self):
        for (length, kind), mean in jobs.run("test_together:_differ"):
            self.assertEqual(length, "broadcast() of float32 of shape (4,), where rank 1 has float32 of shape (5,); expected the same on every rank")
            self.assertIn("where rank 1 has float64 of shape (4,)", kind)
            self.assertEqual(mean, 0.5)

    def test_an_array_that_cannot_take_the_values_is_refused(self):
        (found,) = jobs.run("test_together:_refused", 1)
        self.assertEqual(found, ["LayoutError", "LayoutError", "LayoutError", "UnsupportedError"])

    def test_means_shards_and_steps(self):
        for workers in (1, 2, 3):
            ranks = jobs.run("test_together:_agrees", workers)
            total = 0.0
            for rank in range(workers):
                total += 0.1 * (rank + 1)
            self.assertEqual([found["mean"] for found in ranks], [total / workers] * workers)
            for place, n in enumerate((0, 1, 7, 8)):
                shards = [found["shards"][place] for found in ranks]
                self.assertEqual(sum(shards, []), list(range(n)))
                self.assertLessEqual(max(map(len, shards)) - min(map(len, shards)), 1)
            for found in ranks:
                self.assertEqual(found["steps"], [10 if workers == 1 else 7, 2, 9 if workers == 1 else None, 69_999])


if __name__ == "__main__":
    unittest.main()
