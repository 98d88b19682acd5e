"""Several processes for one training, as `torchrun` starts them: the work of a round is split, the model is in each.

All functions may be called in a run of one process too, where a share is everything and a sum is what is there already.
Nothing of torch is loaded by importing this. See docs/cluster.md.
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

MINUTES = "FEDALC_TIMEOUT_MINUTES"  # how long a process waits for the others; the first may have data to parse
BUCKET = 1 << 20  # bytes: smaller tensors travel together


class LostOthers(FedalcError):
    """A process cannot go on because another has ended, or does not answer."""


@dataclass(frozen=True)
class Process:
    """Which of the processes this is: of all, and of those on its machine."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @property
    def name(self) -> str:
        return f"process {self.rank} of {self.count}"


_here = Process()  # until the others have been met, each is alone


def started_as() -> Process:
    """What `torchrun` says in the environment; one process where it says nothing."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Process()
    told = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    try:
        rank, count, local_rank, local_count = (int(os.environ.get(name, value)) for name, value in told.items())
    except ValueError:
        raise FedalcError(f"{', '.join(told)}: torchrun sets them to numbers, and one of them is none") from None
    return Process(rank, count, local_rank, local_count)


def here() -> Process:
    """This process among those that have met."""
    return _here


def is_first() -> bool:
    """Whether this process is the one that writes and shows."""
    return _here.rank == 0


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Within it, the processes that `torchrun` has started work on one training, on CPUs or on a GPU each."""
    global _here
    place = started_as()
    if place.count == 1 or _here.count > 1:
        yield
        return
    import torch
    import torch.distributed as dist

    cuda = device == "cuda"
    if cuda:
        if place.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"{place.local_count} processes on a machine with {torch.cuda.device_count()} GPUs: start as many "
                "processes as it has (torchrun --nproc-per-node)",
                "device",
            )
        torch.cuda.set_device(place.local_rank)
    with _talking(place):
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(minutes=_minutes()))
    _here = place
    try:
        yield
    except BaseException:
        _here = Process()
        if not cuda:  # NCCL may wait here for those that have gone; the process's end closes everything as well
            dist.destroy_process_group()
        raise
    _here = Process()
    dist.destroy_process_group()


def _minutes() -> float:
    text = os.environ.get(MINUTES, "60")
    with suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise FedalcError(f"{MINUTES}: a positive number of minutes is expected, not {text!r}")


@contextmanager
def _talking(place: Process | None = None) -> Iterator[None]:
    """What goes wrong between processes, told as what it nearly always is."""
    try:
        yield
    except (RuntimeError, ValueError) as error:  # the latter where the environment is incomplete
        reason = (
            re.sub(r"^\[[^]]*\] *", "", str(error)).split(". ")[0].split("\n")[0]
        )  # without torch's own place in it
        raise LostOthers(
            f"{(place or _here).name}: another process has ended or does not answer ({reason}). If it has said why, "
            f"that is the cause; if it needs longer, set {MINUTES}. A run that has begun goes on with --resume"
        ) from None


@contextmanager
def in_turn() -> Iterator[None]:
    """The first process of each machine, then its others: what is kept on disk is made once."""
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


def own_range(size: int, place: Process | None = None) -> slice:
    """This process's part of 0 … size-1, in one piece: the parts follow each other in the order of the processes."""
    at = place or _here
    return slice(size * at.rank // at.count, size * (at.rank + 1) // at.count)


def own_part(items: np.ndarray) -> np.ndarray:
    """Every count-th of them: equal shares, also where their order goes with their size."""
    return items[_here.rank :: _here.count]


# --- what the processes tell each other ---


def sum_over(tensors: Sequence[Tensor]) -> None:
    """Each tensor becomes the sum over processes, in place, and the same bits in all of them."""
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


def any_of(asked: bool) -> bool:
    """Whether any process says so: all come to the same answer."""
    return bool(_reduced(float(asked), "MAX"))


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
    """All rows, in order, from each process's `own_range` of `size`."""
    if _here.count == 1:
        return part
    import torch

    ranges = [own_range(size, Process(rank, _here.count)) for rank in range(_here.count)]
    sizes = [rows.stop - rows.start for rows in ranges]
    padded = part.new_zeros(max(sizes), *part.shape[1:])
    padded[: len(part)] = part
    return torch.cat([rows[:count] for rows, count in zip(gather_equal(padded), sizes, strict=True)])


def gather_equal(part: Tensor) -> list[Tensor]:
    """Every process's tensor, in their order. All have one shape."""
    if _here.count == 1:
        return [part]
    import torch.distributed as dist

    received = [part.new_empty(part.shape) for _ in range(_here.count)]
    with _talking():
        dist.all_gather(received, part)
    return received


def broadcast(tensor: Tensor, source: int) -> None:
    """In place: what process `source` has, in all."""
    if _here.count > 1:
        import torch.distributed as dist

        with _talking():
            dist.broadcast(tensor, source)


def shared_key() -> bytes:
    """32 bytes from the system's randomness, the same in all processes: the key of a generator they share."""
    drawn = [secrets.token_bytes(32)]
    if _here.count > 1:
        import torch.distributed as dist

        with _talking():
            dist.broadcast_object_list(drawn, src=0)
    return drawn[0]


def check_equal(tensors: Sequence[Tensor], when: str) -> None:
    """Refuse to go on where the processes' copies of the model are not the same bits."""
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
            f"the processes' copies of the model differ {when}: have the same processors, torch and settings on all "
            "machines (and OMP_NUM_THREADS), then go on with --resume"
        )


def _bits(tensor: Tensor) -> int:
    import torch

    whole = torch.int64 if tensor.element_size() == 8 else torch.int32
    numbers = tensor.detach().contiguous().view(whole).view(-1)
    return sum(int(part.sum(dtype=torch.int64)) for part in numbers.split(BUCKET))  # a sum casts all it is given
