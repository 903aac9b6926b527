"""Where the values of arrays of other libraries lie, by DLPack: without a GPU, of tensors in main memory."""

import unittest

from models import WHY, torch

import gleaner
from gleaner import _dlpack


class Producer:
    """A library's array, which notes what it is asked for."""

    def __init__(self, tensor, device_type=2):
        self.tensor, self.device_type, self.streams = tensor, device_type, []
        self.requires_grad = tensor.requires_grad

    def __dlpack_device__(self):
        return self.device_type, 0

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self.tensor.__dlpack__()


@unittest.skipIf(torch is None, WHY)
class Lending(unittest.TestCase):
    def test_where_the_values_are_and_of_what_type(self):
        for dtype in ("float32", "float16", "bfloat16"):
            tensor = torch.arange(24, dtype=getattr(torch, dtype)).view(4, 6)
            # A part of it begins at its third row; one row and one entry of it have any strides.
            for part in (tensor, tensor[2:], tensor[3], tensor[1:2, 2:3], tensor[:0], tensor[0, 0]):
                lent = _dlpack.lend(Producer(part), "the gradient")
                self.assertEqual((lent.entries, lent.dtype), (part.numel(), dtype))
                if part.numel():
                    self.assertEqual(lent.address, part.data_ptr())

    def test_the_producer_orders_its_work_or_an_event_does(self):
        producer = Producer(torch.ones(3))
        _dlpack.lend(producer, "the gradient")
        _dlpack.lend(producer, "the gradient", by_event=True)
        # The legacy default stream, and none.
        self.assertEqual(producer.streams, [1, -1])

    def test_memory_lives_as_long_as_it_is_lent(self):
        tensor = torch.ones(1000)
        lent = _dlpack.lend(Producer(tensor), "the gradient")
        address = tensor.data_ptr()
        del tensor
        others = [torch.zeros(1000) for _ in range(100)]
        self.assertNotIn(address, [other.data_ptr() for other in others])
        self.assertEqual(lent.address, address)

    def test_only_a_cuda_device_counts_as_one(self):
        self.assertTrue(_dlpack.is_on_device(Producer(torch.ones(1))))
        self.assertFalse(_dlpack.is_on_device(Producer(torch.ones(1), device_type=1)))
        self.assertFalse(_dlpack.is_on_device([1.0]))

    def test_what_cannot_be_read_is_refused(self):
        square = torch.ones(4, 4)
        for tensor, words in [
            (square.double(), "the gradient is of an unknown type; expected float32, float16 or bfloat16"),
            (square.int(), "unknown type"),
            (square.t()[1:], "the values of the gradient are not one after the other"),
            (square[:, :2], "not one after the other"),
            (square[:, 0], "not one after the other"),
        ]:
            with self.assertRaisesRegex(gleaner.UnsupportedError, words):
                _dlpack.lend(Producer(tensor), "the gradient")
        needs_gradient = torch.ones(3, requires_grad=True)
        with self.assertRaisesRegex(gleaner.UnsupportedError, "the gradient cannot be lent: .*grad"):
            _dlpack.lend(Producer(needs_gradient), "the gradient")


if __name__ == "__main__":
    unittest.main()
