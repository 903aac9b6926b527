"""Gleaner as the communication hook of DistributedDataParallel.

DistributedDataParallel hands over its buckets in an order that is the same on all ranks, and waits for all of them when the backward
pass is over. The hook hands the gradients of a bucket over parameter by parameter, where their exchange begins as soon as their group is
complete; with the last bucket it waits for the update and fills all buckets with means. So residuals belong to parameters, and it does not
matter that buckets are put together again after the first step.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional

import torch

from gleaner import _native
from gleaner._membership import Membership
from gleaner._method import MethodLike
from gleaner.errors import JobFailed, LayoutError, OutOfMemory, UnsupportedError
from gleaner.torch import _device, _refusals
from gleaner.torch._exchange import Exchange, method_and_merge
from gleaner.torch._sessions import session_of
from gleaner.torch._tensors import memory

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

# The first step's buckets are put together again for the second; from then on their order stays.
_STEADY_AFTER = 2


class _Part(NamedTuple):
    """A parameter's part of a bucket."""

    name: str
    parameter: torch.Tensor
    gradient: torch.Tensor
    offset: int


class _Bucket(NamedTuple):
    """A bucket that waits for the update."""

    future: "torch.futures.Future[torch.Tensor]"
    buffer: torch.Tensor
    values: torch.Tensor
    parts: List[_Part]


class Hook(Exchange):
    """What `register` gives: the state of the exchange."""

    def __init__(
        self,
        model: torch.nn.parallel.DistributedDataParallel,
        method: _native.Method,
        session: Membership,
        scaler: Any,
        merge: str,
    ) -> None:
        ignored = getattr(model, "parameters_to_ignore", ())
        named = {
            name: parameter
            for name, parameter in model.module.named_parameters()
            if parameter.requires_grad and name not in ignored
        }
        _refusals.refuse_parameters(named)
        super().__init__(named, method, session, scaler, merge, _STEADY_AFTER, _device.of(named, method))
        self._model = model
        self._ignored = len(ignored)
        self._open: List[_Bucket] = []
        self._scale = 1.0
        #: What the present backward pass raises when it ends.
        self._error: Optional[BaseException] = None

    def exchange(self, bucket: "GradBucket") -> "torch.futures.Future[torch.Tensor]":
        """Takes in a bucket; the future has the means."""
        if self._error is None:
            try:
                self._take_in(bucket)
                future = self._open[-1].future
                if bucket.is_last():
                    self._finish()
                return future
            except BaseException as error:
                self._fail(error)
        # The backward pass goes to its end, and raises the error there.
        buffer = bucket.buffer()
        given_up = _future(buffer)
        given_up.set_result(buffer)
        return given_up

    def _fail(self, error: BaseException) -> None:
        """Has the backward pass raise an error. Raised in the hook, it would come out as a RuntimeError."""
        self._open.clear()
        if not isinstance(error, JobFailed):
            # The step cannot be completed, and the others wait for it.
            self.session.abort(f"{type(error).__name__}: {error}")
        self._error = error
        engine: Any = torch.autograd.Variable._execution_engine
        try:
            engine.queue_callback(self._raise)
        except RuntimeError:
            # Outside of a backward pass: a rank without data, which `join` makes take part.
            self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _take_in(self, bucket: "GradBucket") -> None:
        buffer = bucket.buffer()
        gradients, parameters = bucket.gradients(), bucket.parameters()
        parts = [self._part(buffer, *pair) for pair in zip(parameters, gradients)]
        if not self._open:
            self._begin()
        if self._device is not None:
            for part in parts:
                self._device.hand_over(self.gradients, part.name, part.gradient, self._scale)
            self._open.append(_Bucket(_future(buffer), buffer, buffer, parts))
            return
        values = self._staging.values(bucket.index(), buffer)
        if self._scale != 1.0:
            # The residual is of unscaled gradients. What is written over is replaced by means.
            values.mul_(1.0 / self._scale)
        for part in parts:
            self.gradients.ready(part.name, *memory(values, part.offset, part.gradient.numel()))
        self._open.append(_Bucket(_future(buffer), buffer, values, parts))

    def _part(self, buffer: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor) -> _Part:
        name = self._names.get(id(parameter))
        if name is None:
            raise LayoutError(
                f"DistributedDataParallel exchanges a parameter of shape {tuple(parameter.shape)} that the model did not have when the hook "
                "was registered; register it after the last change of the model"
            )
        _refusals.refuse_gradient(name, gradient)
        offset = int(gradient.storage_offset() - buffer.storage_offset())
        return _Part(name, parameter, gradient, offset)

    def _begin(self) -> None:
        self.skipped = None
        self._scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        count = sum(1 for parameter in self._model.module.parameters() if parameter.requires_grad)
        if count > len(self._names) + self._ignored:
            raise LayoutError(
                f"the model has {count} parameters that need gradients and had {len(self._names)} when the hook was registered; "
                "parameters that are added later are not exchanged: wrap the model and register the hook after that"
            )

    def _finish(self) -> None:
        try:
            update = self.gradients.wait()
        except OutOfMemory as error:
            self._undo(error)
            return
        skipped = update.skipped
        buckets, self._open = self._open, []
        if skipped is not None:
            self.skipped = skipped[0]
        for bucket in buckets:
            if skipped is not None:
                # A GradScaler finds it on every rank alike, leaves the step out and lowers the scale.
                bucket.values.fill_(math.inf if self._scaler is not None else 0.0)
            elif self._device is not None:
                for part in bucket.parts:
                    self._device.deliver(update, part.name, part.gradient, self._scale)
            else:
                for part in bucket.parts:
                    update.copy_to(part.name, *memory(bucket.values, part.offset, part.gradient.numel()))
                if self._scale != 1.0:
                    bucket.values.mul_(self._scale)
            self._staging.give_back(bucket.values, bucket.buffer)
        may_leave_out = self._model.find_unused_parameters or getattr(self._model, "static_graph", False)
        if skipped is None and may_leave_out:
            self._deliver_unused([part for bucket in buckets for part in bucket.parts])
        for bucket in buckets:
            bucket.future.set_result(bucket.buffer)

    def _undo(self, error: OutOfMemory) -> None:
        """All ranks undo the step, and go on: DistributedDataParallel ends the backward pass, which raises the error after that."""
        if self._device is not None:
            self._device.free_cached()
        buckets, self._open = self._open, []
        for bucket in buckets:
            bucket.buffer.zero_()
            bucket.future.set_result(bucket.buffer)

        def report() -> None:
            raise error

        with contextlib.suppress(RuntimeError):
            # A rank without data, which `join` makes take part outside of a backward pass, has nothing to do again.
            _after_pass(report)

    def _deliver_unused(self, parts: List[_Part]) -> None:
        """Gives parameters their means that no rank has used in this step: DistributedDataParallel leaves their gradients as they were,
        and what the residual has delivered for them would be lost."""

        def deliver() -> None:
            for part in parts:
                mean = part.gradient.detach().view_as(part.parameter)
                if part.parameter.grad is None:
                    if bool(mean.any()):
                        part.parameter.grad = mean.clone()
                elif not torch.equal(part.parameter.grad, mean):
                    part.parameter.grad.copy_(mean)

        with contextlib.suppress(RuntimeError):
            # A rank without data, which `join` makes take part outside of a backward pass, steps no optimiser.
            _after_pass(deliver)

    @property
    def step(self) -> int:
        """The number of the present step, from 0."""
        return self.gradients.step()


def _after_pass(callback: Callable[[], None]) -> None:
    """Calls back after DistributedDataParallel, which queues the callback that ends the backward pass after this one.

    Raises:
        RuntimeError: there is no backward pass.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(callback))


def _future(buffer: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
    """A future of what is on the buffer's device."""
    return torch.futures.Future(devices=[] if buffer.device.type == "cpu" else [buffer.device])


def _exchange(hook: Hook, bucket: "GradBucket") -> "torch.futures.Future[torch.Tensor]":
    return hook.exchange(bucket)


# DistributedDataParallel compares annotations with types, and these are texts.
_exchange.__annotations__ = {}


def register(
    model: torch.nn.parallel.DistributedDataParallel,
    method: MethodLike = "spardl",
    *,
    density: Optional[float] = None,
    scaler: Any = None,
    merge: str = "optimal",
    **options: Any,
) -> Hook:
    """Makes Gleaner the communication hook of a model: its gradients become the mean over the ranks of what was selected.

    All ranks call it together, after the model was wrapped and before the first step. The learning rate stays as it is; with
    momentum use `gleaner.torch.SGD`, or Adam with β₁ = 0. The hook does not know the optimiser, so give it to `health` once in a while, which
    finds another momentum where entries wait for long. Without this call the script is what it was.

    Args:
        model: a DistributedDataParallel, of parameters of float32, bfloat16 or float16, on the CPU or on CUDA devices.
        method: a `gleaner.Method`, or the name of one; `auto` for the one that is cheapest.
        density: the share of entries that is selected in each step, by default 0.05, and at least 256 entries of each group, with values of 4 bits.
        scaler: the GradScaler that scales the loss, if there is one. Residuals are kept unscaled, and a step that is not finite on one rank
            is left out on all.
        merge: how parameters are merged into groups that are exchanged together: a strategy such as `optimal`, `threshold/65536` or `single`.
        options: those of `gleaner.Method`, such as `momentum_correction=0.9`, `values="bf16"` or `on_nonfinite="skip"`.

    Returns:
        The hook's state, with `state_dict` and `load_state_dict` for checkpoints.

    Raises:
        UnsupportedError: a model, a parameter or an option that cannot work, by its name.
        MethodError: an invalid method, density or strategy.
        JobFailed: ranks whose parameters or methods differ: the text names the first difference.
    """
    # torch.compile puts a module of its own around it.
    model = getattr(model, "_orig_mod", model)
    _refusals.refuse_wrapper(model)
    _refusals.refuse_options(model)
    _refusals.refuse_modules(model.module)
    made, merge = method_and_merge(method, density, scaler, merge, options)
    hook = Hook(model, made, session_of(model.process_group), scaler, merge)
    try:
        model.register_comm_hook(hook, _exchange)
    except RuntimeError as error:
        if "only be called once" in str(error):
            # PyTorch 1.13 does not say so before.
            raise UnsupportedError(_refusals.ANOTHER_HOOK) from error
        raise
    return hook
