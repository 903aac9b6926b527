"""Gradients that stay on a GPU: the same bits as in main memory. SKIPPED where there is no device."""

import os
import unittest

import jobs
from models import SIZES, WHY, inputs_of, linear, lists, start, torch, wrapped

if torch is not None:
    import gleaner
    import gleaner.torch

# Not by PyTorch, which would start CUDA: the workers are forked from this process.
NO_DEVICE = WHY or ("" if os.path.exists("/dev/nvidiactl") else "SKIPPED: no CUDA device is here")

STEPS = 6


def _devices(names):
    """The device of this rank; the first of several GPUs is enough."""
    return torch.device(names[int(os.environ["RANK"])])


def _inputs(rank, step, device, dtype):
    return {name: value.to(dtype).to(device) for name, value in inputs_of(rank, step, STEPS - 1).items()}


def _hooked(names, dtype="float32", scale=None, **options):
    """The means of each step, with the hook of DistributedDataParallel."""
    rank, device, kind = start(), _devices(names), getattr(torch, dtype)
    model = wrapped(linear(SIZES).to(device).to(kind))
    scaler = None if scale is None else torch.amp.GradScaler(device.type, init_scale=scale)
    hook = gleaner.torch.register(model, density=0.05, merge="single", scaler=scaler, **options)
    on_device = hook._device is not None
    seen = []
    for step in range(STEPS):
        model.zero_grad()
        loss = model(_inputs(rank, step, device, kind))
        (loss if scaler is None else scaler.scale(loss)).backward()
        divisor = 1.0 if scaler is None else scaler.get_scale()
        seen.append(lists({name: p.grad.float().cpu() / divisor for name, p in model.module.named_parameters()}))
    return [seen, on_device]


def _synchronized(names, dtype="float32", **options):
    """The same with a Synchronizer, whose backward passes run on a stream of their own where there is a device."""
    rank, device, kind = start(), _devices(names), getattr(torch, dtype)
    model = linear(SIZES).to(device).to(kind)
    sync = gleaner.torch.Synchronizer(model.named_parameters(), density=0.05, merge="single", **options)
    stream = torch.cuda.Stream() if device.type == "cuda" else None
    seen = []
    for step in range(STEPS):
        with torch.cuda.stream(stream):
            model.zero_grad()
            model(_inputs(rank, step, device, kind)).backward()
            # Memory that is given back at once, and taken by others.
            torch.full((5000,), 7.0, device=device)
            sync.wait()
            seen.append(lists({name: p.grad.float().cpu() for name, p in model.named_parameters()}))
    return [seen, sync._device is not None]


def _resumed(names):
    """Two halves of a run, with a state between them."""
    rank, device = start(), _devices(names)

    def synchronizer():
        model = linear(SIZES).to(device)
        return model, gleaner.torch.Synchronizer(model.named_parameters(), density=0.05, merge="single")

    def train(model, sync, steps):
        for step in steps:
            model.zero_grad()
            model(_inputs(rank, step, device, torch.float32)).backward()
            sync.wait()
        return lists({name: p.grad.float().cpu() for name, p in model.named_parameters()})

    model, sync = synchronizer()
    train(model, sync, range(3))
    state = sync.state_dict()
    straight = train(model, sync, range(3, 5))
    model, sync = synchronizer()
    sync.load_state_dict(state)
    return train(model, sync, range(3, 5)) == straight


def _arrays(names):
    """By DLPack, without PyTorch's hooks."""
    rank, device = int(os.environ["RANK"]), _devices(names)
    count, session = 10_000, gleaner.Session.join()
    ordinal = 0 if device.type == "cuda" else None
    gradients = session.gradients({"w": count}, density=0.01, device=ordinal)
    seen = []
    for step in range(3):
        values = torch.randn(count, generator=torch.Generator().manual_seed(10 * rank + step))
        if ordinal is None:
            gradients.ready("w", values.numpy())
            seen.append(gradients.wait().values("w").tolist())
        else:
            gradients.ready("w", values.to(device))
            mean = torch.full((count,), -1.0, device=device)
            gradients.wait().copy_to("w", mean)
            torch.cuda.synchronize()
            seen.append(mean.tolist())
    return seen


def _after_events(names):
    """The same after recorded events, with a gradient that a stream of the program's writes late."""
    rank, device = int(os.environ["RANK"]), _devices(names)
    count, session = 10_000, gleaner.Session.join()
    gradients = session.gradients({"w": count}, density=0.01, device=0)
    seen, stream, event = [], torch.cuda.Stream(), torch.cuda.Event()
    busy = torch.ones(1 << 26, device=device)
    torch.cuda.synchronize()
    for step in range(3):
        values = torch.randn(count, generator=torch.Generator().manual_seed(10 * rank + step)).to(device)
        late = torch.zeros(count, device=device)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(16):
                busy.mul_(1.0)
            late.copy_(values)
            event.record()
        gradients.ready("w", late, event=event.cuda_event)
        mean = torch.full((count,), -1.0, device=device)
        torch.cuda.synchronize()
        gradients.wait().copy_to("w", mean)
        torch.cuda.synchronize()
        seen.append(mean.tolist())
    return seen


def _without_memory():
    """A job that does not fit."""
    session, said = gleaner.Session.join(), []
    torch.ones(1, device="cuda")
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - (300 << 20), dtype=torch.uint8, device="cuda")
    try:
        session.gradients({"w": 150_000_000}, device=0)
    except gleaner.OutOfMemory as error:
        said.append(str(error))
    del taken
    return said


def _captured():
    """A gradient on a stream that is being captured into a graph."""
    session = gleaner.Session.join()
    gradients = session.gradients({"w": 1000}, device=0)
    values, said = torch.ones(1000, device="cuda"), ""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            gradients.native.ready_on_device("w", values.data_ptr(), 1000, "float32", stream.cuda_stream)
        except gleaner.Error as error:
            said = str(error)
        graph.capture_end()
    return said


def _refused():
    """Memory of the host, and another length."""
    session, said = gleaner.Session.join(), []
    there = torch.ones(100, device="cuda")
    for address, count in ((torch.ones(100).data_ptr(), 100), (there.data_ptr(), 99)):
        gradients = session.gradients({"w": 100}, device=0)
        try:
            gradients.native.ready_on_device("w", address, count, "float32", 0)
        except gleaner.Error as error:
            said.append(str(error))
            break
    return said


@unittest.skipIf(NO_DEVICE, NO_DEVICE)
class OnDevices(unittest.TestCase):
    def _same(self, function, **options):
        expected = jobs.run(f"test_cuda:{function}", 2, ["cpu", "cpu"], *self._options(options))
        self.assertFalse(any(on_device for _, on_device in expected))
        for names in (["cuda:0", "cuda:0"], ["cpu", "cuda:0"]):
            found = jobs.run(f"test_cuda:{function}", 2, names, *self._options(options))
            self.assertEqual([on_device for _, on_device in found], [name != "cpu" for name in names])
            self.assertEqual([seen for seen, _ in found], [seen for seen, _ in expected])

    def _options(self, options):
        return [options[name] for name in ("dtype", "scale") if name in options]

    def test_the_hook_gives_the_same_bits(self):
        self._same("_hooked")

    def test_the_hook_takes_16_bits(self):
        self._same("_hooked", dtype="bfloat16")

    def test_scaled_losses(self):
        self._same("_hooked", dtype="float32", scale=1024.0)

    def test_a_synchronizer_gives_the_same_bits(self):
        self._same("_synchronized")

    def test_a_synchronizer_takes_16_bits(self):
        self._same("_synchronized", dtype="float16")

    def test_a_state_is_gone_on_from(self):
        self.assertEqual(jobs.run("test_cuda:_resumed", 2, ["cuda:0", "cuda:0"]), [True, True])

    def test_arrays_of_any_library(self):
        expected = jobs.run("test_cuda:_arrays", 2, ["cpu", "cpu"])
        self.assertEqual(jobs.run("test_cuda:_arrays", 2, ["cuda:0", "cpu"]), expected)

    def test_gradients_are_read_after_events(self):
        expected = jobs.run("test_cuda:_arrays", 2, ["cpu", "cpu"])
        self.assertEqual(jobs.run("test_cuda:_after_events", 2, ["cuda:0", "cuda:0"]), expected)

    def test_what_does_not_fit_is_refused_with_what_is_missing(self):
        ((sentence,),) = jobs.run("test_cuda:_without_memory", 1)
        for words in ("not enough memory", "missing"):
            self.assertIn(words, sentence)

    def test_what_cannot_be_is_refused_with_a_sentence(self):
        (said,) = jobs.run("test_cuda:_captured", 1)
        self.assertIn("captur", said)
        ((sentence,),) = jobs.run("test_cuda:_refused", 1)
        self.assertIn("expected", sentence)


if __name__ == "__main__":
    unittest.main()
