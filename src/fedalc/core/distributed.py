"""Train with several processes, started by `torchrun`: they share the work of a round, and each has the model.

All functions also work in a single process, where a share is everything and a sum changes nothing. Importing this
module does not load torch. See docs/cluster.md.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from fedalc.errors import ConfigError, FedalcError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

MINUTES = "FEDALC_TIMEOUT_MINUTES"  # how long a process waits for the others; the first may have to parse data
BUCKET = 1 << 20  # bytes: smaller tensors are sent together


class LostOthers(FedalcError):
    """This process cannot continue because another has ended or does not answer."""


@dataclass(frozen=True)
class Process:
    """This process's number among all processes, and among those on its machine."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @property
    def name(self) -> str:
        return f"process {self.rank} of {self.count}"


_here = Process()  # a single process until `joined` has connected the others


def started_as() -> Process:
    """Return what `torchrun` set in the environment, or a single process."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Process()
    defaults = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    try:
        rank, count, local_rank, local_count = (int(os.environ.get(name, value)) for name, value in defaults.items())
    except ValueError:
        raise FedalcError(f"{', '.join(defaults)}: torchrun sets these to numbers, but one is not a number") from None
    return Process(rank, count, local_rank, local_count)


def here() -> Process:
    """Return this process's number among the connected processes."""
    return _here


def is_first() -> bool:
    """Return whether this process is the one that writes files and shows output."""
    return _here.rank == 0


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Connect the processes that `torchrun` started: within it they work on one training, on CPUs or on a GPU each."""
    global _here
    process = started_as()
    if process.count == 1 or _here.count > 1:
        yield
        return
    import torch
    import torch.distributed as dist

    cuda = device == "cuda"
    if cuda:
        if process.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"{process.local_count} processes on a machine with {torch.cuda.device_count()} GPUs: start one "
                "process per GPU (torchrun --nproc-per-node)",
                "device",
            )
        torch.cuda.set_device(process.local_rank)
    with _talking(process):
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(minutes=_minutes()))
    _here = process
    try:
        yield
    except BaseException:
        _here = Process()
        if not cuda:  # NCCL may wait for processes that have ended; the end of this process closes everything anyway
            dist.destroy_process_group()
        raise
    _here = Process()
    dist.destroy_process_group()


def _minutes() -> float:
    text = os.environ.get(MINUTES, "60")
    with suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise FedalcError(f"{MINUTES}: expected a positive number of minutes, found {text!r}")


@contextmanager
def _talking(process: Process | None = None) -> Iterator[None]:
    """Turn errors of communication into a message with their most likely cause."""
    try:
        yield
    except (RuntimeError, ValueError) as error:  # ValueError: the environment is incomplete
        reason = re.sub(r"^\[[^]]*\] *", "", str(error)).split(". ")[0].split("\n")[0]  # without torch's file and line
        raise LostOthers(
            f"{(process or _here).name}: another process has ended or does not answer ({reason}). Look for its error "
            f"message; if it needs longer, set {MINUTES}. A run that has begun continues with --resume"
        ) from None


@contextmanager
def in_turn() -> Iterator[None]:
    """Run in the first process of each machine, then in its others: files are made once."""
    first = _here.local_rank == 0
    if not first:
        barrier()
    yield
    if first:
        barrier()


def barrier() -> None:
    if _here.count > 1:
        any_of(False)


# --- shares of the work ---


def own_range(size: int, process: Process | None = None) -> slice:
    """Return this process's part of 0 … size-1 as one range. The parts are in the order of the processes."""
    at = process or _here
    return slice(size * at.rank // at.count, size * (at.rank + 1) // at.count)


def own_part(items: np.ndarray) -> np.ndarray:
    """Return this process's part of the items, one in `count`: equal shares even if they are sorted by size."""
    return items[_here.rank :: _here.count]


# --- communication ---


def sum_over(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all processes, in place. The result is bitwise equal in all of them."""
    if _here.count == 1 or not tensors:
        return
    import torch
    import torch.distributed as dist

    small: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    large: list[Tensor] = []
    for tensor in tensors:
        if tensor.numel() * tensor.element_size() >= BUCKET and tensor.is_contiguous():
            large.append(tensor)
        else:
            small.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    buckets = [(torch.cat([part.reshape(-1) for part in parts]), parts) for parts in small.values()]
    with _talking(), torch.no_grad():
        waiting = [dist.all_reduce(t, async_op=True) for t in [*large, *(bucket for bucket, _ in buckets)]]
        for work in waiting:
            work.wait()
        for bucket, parts in buckets:
            for part, summed in zip(parts, bucket.split([part.numel() for part in parts]), strict=True):
                part.copy_(summed.view_as(part))


def sum_of(number: float) -> float:
    return _reduced(number, "SUM")


def maximum(number: float) -> float:
    return _reduced(number, "MAX")


def any_of(condition: bool) -> bool:
    """Return whether the condition is true in any process. All processes get the same answer."""
    return bool(_reduced(float(condition), "MAX"))


def _reduced(number: float, how: str) -> float:
    if _here.count == 1:
        return number
    import torch
    import torch.distributed as dist

    value = torch.tensor(number, dtype=torch.float64)
    with _talking():
        dist.all_reduce(value, getattr(dist.ReduceOp, how))
    return value.item()


def gather_rows(part: Tensor, size: int) -> Tensor:
    """Return all rows in order, where each process gives its `own_range` of `size` rows."""
    if _here.count == 1:
        return part
    import torch

    ranges = [own_range(size, Process(rank, _here.count)) for rank in range(_here.count)]
    sizes = [rows.stop - rows.start for rows in ranges]
    padded = part.new_zeros(max(sizes), *part.shape[1:])
    padded[: len(part)] = part
    return torch.cat([rows[:count] for rows, count in zip(gather_equal(padded), sizes, strict=True)])


def gather_equal(part: Tensor) -> list[Tensor]:
    """Return the tensors of all processes, in their order. All must have the same shape."""
    if _here.count == 1:
        return [part]
    import torch.distributed as dist

    received = [part.new_empty(part.shape) for _ in range(_here.count)]
    with _talking():
        dist.all_gather(received, part)
    return received


def broadcast(tensor: Tensor, source: int) -> None:
    """Copy the tensor of process `source` to all processes, in place."""
    if _here.count > 1:
        import torch.distributed as dist

        with _talking():
            dist.broadcast(tensor, source)


def shared_key() -> bytes:
    """Return 32 random bytes from the system, the same in all processes: the key of a shared generator."""
    drawn = [secrets.token_bytes(32)]
    if _here.count > 1:
        import torch.distributed as dist

        with _talking():
            dist.broadcast_object_list(drawn, src=0)
    return drawn[0]


def check_equal(tensors: Sequence[Tensor], when: str) -> None:
    """Raise an error if the processes' copies of the model are not bitwise equal."""
    if _here.count == 1:
        return
    import torch
    import torch.distributed as dist

    mine = torch.zeros(2, dtype=torch.int64)
    mine[0] = sum(_bits(tensor) for tensor in tensors) & 0x7FFFFFFFFFFFFFFF
    mine[1] = -mine[0]
    with _talking():
        dist.all_reduce(mine, dist.ReduceOp.MAX)
    if mine[0] != -mine[1]:
        raise FedalcError(
            f"the processes' copies of the model differ {when}: use the same processors, torch version, settings and "
            "OMP_NUM_THREADS on all machines, then continue with --resume"
        )


def _bits(tensor: Tensor) -> int:
    import torch

    whole = torch.int64 if tensor.element_size() == 8 else torch.int32
    numbers = tensor.detach().contiguous().view(whole).view(-1)
    return sum(int(part.sum(dtype=torch.int64)) for part in numbers.split(BUCKET))  # a sum casts all it is given
