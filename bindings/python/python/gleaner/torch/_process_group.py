"""Gleaner as a backend of torch.distributed: `init_process_group("gleaner")`."""

from __future__ import annotations

import datetime
import inspect
import math
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

from gleaner import _native
from gleaner._membership import Membership
from gleaner._method import as_method
from gleaner.errors import Error, UnsupportedError
from gleaner.torch._sessions import through_store

# Types that are reduced as they are, by their names.
_TYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}

# Whole numbers of fewer bits are exact as float64.
_EXACT = 53

# Of so few entries, latency is most of the time.
_FEW = 8192

_OPERATIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.PRODUCT: "product",
}


def create(store: "torch._C._distributed_c10d.Store", rank: int, world_size: int, timeout: datetime.timedelta) -> "ProcessGroup":
    """A process group of ranks that share a store. How long a peer may be silent is GLEANER_TIMEOUT, not `timeout`."""
    return ProcessGroup(through_store(store, rank, world_size))


def register_backend() -> None:
    """Makes `init_process_group("gleaner")` known to torch.distributed."""
    if hasattr(dist.Backend, "GLEANER"):
        return
    register: Any = dist.Backend.register_backend
    if "devices" in inspect.signature(register).parameters:
        register("gleaner", create, devices=["cpu"])
    else:
        # PyTorch 1.13 asks no backend for the devices it serves.
        register("gleaner", create)


def _done(result: Any) -> dist.Work:
    """A work that is over."""
    future: "torch.futures.Future[Any]" = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


def _operation(op: Any) -> str:
    for known, name in _OPERATIONS.items():
        if op == known:
            return name
    raise UnsupportedError(f"the backend gleaner has no reduction {op}; expected SUM, AVG, MAX, MIN or PRODUCT")


def _host(tensor: torch.Tensor, what: str) -> None:
    if tensor.device.type != "cpu":
        raise UnsupportedError(f"{what} of the backend gleaner was given a tensor on {tensor.device}; expected one on the CPU")


def _flattened(tensor: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """The places of a COO tensor's values in the flattened tensor, in ascending order, and the values."""
    tensor = tensor.coalesce()
    indices, values = tensor.indices(), tensor.values()
    places = torch.zeros(indices.shape[1], dtype=torch.int64)
    for of_dimension, size in zip(indices, tensor.shape):
        places = places * size + of_dimension
    width = math.prod(tensor.shape[tensor.sparse_dim() :])
    if width != 1:
        places = (places.unsqueeze(1) * width + torch.arange(width)).flatten()
    return places.contiguous(), values.contiguous().flatten()


def _unflattened(places: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The COO tensor, of the shape and the sparse dimensions of another, that has these values there."""
    dense = like.shape[like.sparse_dim() :]
    width = math.prod(dense)
    rows, which = torch.unique_consecutive(torch.div(places, width, rounding_mode="floor"), return_inverse=True)
    of_rows = torch.zeros(rows.numel(), width, dtype=values.dtype)
    of_rows[which, places.remainder(width)] = values
    indices: List[torch.Tensor] = []
    for size in reversed(like.shape[: like.sparse_dim()]):
        indices.insert(0, rows.remainder(size))
        rows = torch.div(rows, size, rounding_mode="floor")
    made = torch.sparse_coo_tensor(torch.stack(indices), of_rows.view(-1, *dense), like.shape)
    return made.coalesce()


class ProcessGroup(dist.ProcessGroup):
    """A process group whose collectives Gleaner carries: all-reduce, broadcast, all-gather and barrier.

    Each of them is over when the call returns, also with `async_op=True`. The mean and the sum of dense tensors deliver every entry. What
    is missing raises `UnsupportedError` with the operation's name.
    """

    def __init__(self, session: Membership) -> None:
        super().__init__(session.rank, session.world_size)
        #: The session behind it, which `gleaner.torch.register` uses, too.
        self.session = session
        self._reducers: Dict[Tuple[Any, ...], _native.Reducer] = {}
        self._sparse_reducers: Dict[str, _native.SparseReducer] = {}

    def getBackendName(self) -> str:
        """The name that init_process_group was given."""
        return "gleaner"

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Reduces a tensor over all ranks, in place: dense, or sparse in COO format, of which non-zero entries travel."""
        op = _operation(dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        for tensor in tensors:
            _host(tensor, "all_reduce")
            if tensor.layout == torch.sparse_coo:
                self._reduce_sparse(tensor, op)
            else:
                self._reduce(tensor, op)
        return _done(tensors)

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduces several tensors."""
        return self.allreduce(tensors, opts)

    def _reduce(self, tensor: torch.Tensor, op: str) -> None:
        if tensor.layout != torch.strided:
            raise UnsupportedError(f"all_reduce was given a tensor of layout {tensor.layout}; expected a dense or a COO tensor")
        if tensor.numel() == 0:
            return
        if tensor.dtype in _TYPES:
            values = tensor.detach().contiguous()
            result = self._reduced(values, op, "ring" if values.numel() > _FEW else "recursive-doubling")
        else:
            result = self._reduced(self._as_float(tensor, op), op, "recursive-doubling")
        tensor.detach().copy_(result.view(tensor.shape))

    def _as_float(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        """Whole numbers as float64, in which their reduction is exact."""
        if tensor.is_complex() or tensor.is_floating_point() or op == "mean":
            raise UnsupportedError(f"all_reduce has no {op} of {tensor.dtype}; expected float32, float64, bfloat16 or float16")
        values = tensor.detach().to(torch.float64).contiguous()
        largest = float(values.abs().max())
        bits = math.log2(max(largest, 1.0))
        bits = bits * self.session.world_size if op == "product" else bits
        bits = bits + math.log2(self.session.world_size) if op == "sum" else bits
        if bits >= _EXACT:
            raise UnsupportedError(
                f"all_reduce computes with whole numbers below 2**53, and the {op} of {tensor.dtype} up to {largest:.0f} may be larger; use float64 "
                "if it need not be exact"
            )
        return values

    def _reduced(self, values: torch.Tensor, op: str, method: str, density: Optional[float] = None) -> torch.Tensor:
        kind = _TYPES[values.dtype]
        key = (values.numel(), kind, "sum" if op == "mean" else op, method)
        reducer = self._reducers.get(key)
        name = f"{kind}[{values.numel()}]"
        if reducer is None:
            made = as_method(method, density)
            reducer = self.session.native.reducer(name, values.numel(), made, kind, op)
            self._reducers[key] = reducer
        update = reducer.start(values.data_ptr(), values.numel()).wait()
        result = torch.empty_like(values)
        workers = self.session.world_size if op == "sum" else None
        update.copy_to(name, result.data_ptr(), result.numel(), workers)
        return result

    def _reduce_sparse(self, tensor: torch.Tensor, op: str) -> None:
        if op not in ("sum", "mean") or tensor.dtype not in _TYPES:
            raise UnsupportedError(
                f"all_reduce has no {op} of sparse tensors of {tensor.dtype}; expected SUM or AVG of float32, float64, bfloat16 or float16"
            )
        if tensor.numel() == 0:
            return
        if tensor.numel() >= 1 << 32:
            raise UnsupportedError(
                f"all_reduce was given a sparse tensor of {tensor.numel()} values; expected fewer than 2**32: cut it into several"
            )
        places, values = _flattened(tensor.detach())
        update, name = self._reduced_entries(places, values, tensor.numel())
        entries = update.sparse(name, op == "sum")
        places = torch.empty(entries.count, dtype=torch.int64)
        values = torch.empty(entries.count, dtype=tensor.dtype)
        entries.copy_to(places.data_ptr(), values.data_ptr(), entries.count)
        tensor.copy_(_unflattened(places, values, tensor))

    def _reduced_entries(self, places: torch.Tensor, values: torch.Tensor, n: int) -> Tuple[_native.Update, str]:
        kind = _TYPES[values.dtype]
        name = f"sparse {kind}[{n}]"
        reducer = self._sparse_reducers.get(name)
        if reducer is None:
            # SparCML's. Without a density nothing is left out.
            reducer = self.session.native.sparse_reducer(name, n, as_method("ssar-recursive-double", None), kind)
            self._sparse_reducers[name] = reducer
        return reducer.start(places.data_ptr(), values.data_ptr(), values.numel()).wait(), name

    def broadcast(self, tensors: List[torch.Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Gives every rank the tensor of one, bit by bit, of any type."""
        root = 0 if opts is None else int(opts.rootRank)
        for tensor in tensors:
            _host(tensor, "broadcast")
            values = tensor.detach().contiguous()
            self.session.native.broadcast(values.data_ptr(), values.numel() * values.element_size(), root)
            if values.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(values)
        return _done(tensors)

    def allgather(  # type: ignore[override]
        self, output_tensors: List[List[torch.Tensor]], input_tensors: List[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Gives every rank the tensors of all ranks."""
        for outputs, tensor in zip(output_tensors, input_tensors):
            gathered = self._gathered(tensor)
            for output, part in zip(outputs, gathered):
                output.detach().copy_(part.view(output.shape))
        return _done(output_tensors)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> dist.Work:
        """Gives every rank the tensors of all ranks, one after the other."""
        output.detach().copy_(self._gathered(tensor).view(output.shape))
        return _done(output)

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        _host(tensor, "all_gather")
        values = tensor.detach().contiguous()
        gathered = torch.empty((self.session.world_size, *values.shape), dtype=values.dtype)
        count = values.numel() * values.element_size()
        self.session.native.gather(values.data_ptr(), count, gathered.data_ptr())
        return gathered

    def allgather_into_tensor_coalesced(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Gathers several tensors."""
        for output, tensor in zip(outputs, inputs):
            self._allgather_base(output, tensor, opts)
        return _done(outputs)

    # What newer versions of PyTorch call it by.
    all_gather_single_coalesced: Any = allgather_into_tensor_coalesced

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, *arguments: Any) -> dist.Work:
        """What newer versions of PyTorch call all_gather_into_tensor by."""
        return self._allgather_base(output, tensor)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Waits until all ranks are here."""
        self.session.barrier()
        return _done(None)

    def shutdown(self) -> None:
        """Leaves the job."""
        self._reducers.clear()
        self._sparse_reducers.clear()
        self.session.leave()

    def abort(self) -> None:
        """Ends the job on all ranks."""
        self._reducers.clear()
        self._sparse_reducers.clear()
        try:
            self.session.abort("its process group was aborted")
        except Error:
            # It has failed before.
            pass

    def __repr__(self) -> str:
        return f"<gleaner.torch.ProcessGroup rank {self.session.rank} of {self.session.world_size}>"


# What torch.distributed calls, by what its users call.
_MISSING = {
    "reduce": "reduce",
    "gather": "gather",
    "gather_single": "gather_into_tensor",
    "gather_into_tensor": "gather_into_tensor",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "allgather_coalesced": "all_gather_coalesced",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
    "monitored_barrier": "monitored_barrier",
}


def _missing(operation: str) -> Callable[..., NoReturn]:
    def refuse(self: ProcessGroup, *arguments: Any, **options: Any) -> NoReturn:
        raise UnsupportedError(
            f"the backend gleaner has no {operation}; it has all_reduce, broadcast, all_gather and barrier. Make another group for "
            f"{operation}, such as torch.distributed.new_group(backend='gloo')"
        )

    return refuse


for _method, _called in _MISSING.items():
    setattr(ProcessGroup, _method, _missing(_called))
