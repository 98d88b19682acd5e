"""Fewer bytes between server and parties: rows of a party's own features, numbers of 16 or 8 bits (`[compression]`).

The one place that says what is sent in place of whole tensors. Simulations pack and unpack every party's part with it,
and real parties put the same arrays into their messages, so that both count the same bytes.

- **Rows.** A sparse layer's matrix has a row for each feature, and a party's gradient is zero on the rows of features
  that its records do not have. With `rows = "own"` only the others are sent, and of these only columns that are not all
  zero. Exact. A party sends the numbers of its rows with its first change; from then on it gets these rows of θ alone.
- **Rounding.** To the two neighbours of a number that 16 bits (bfloat16) or 8 bits (a scale for each row) can say, at
  random, so that the mean is the number itself. What rounding took off θ is no error: the server learns from
  `RoundResult.at` where the parties computed.
- **Factors.** The sums of one round have the matrix G = Σ x xᵀ/m of a party's records. It is sent as a triangular
  factor L with L Lᵀ = G, which has as many columns as there are records, if these are fewer than the rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.seeds import torch_generator
from fedalc.data.federation import Federation
from fedalc.engines.vectors import half_of
from fedalc.errors import DataError
from fedalc.models.encoders import Encoder
from fedalc.models.model import Model

Arrays = dict[str, np.ndarray]
"""What travels in place of a tensor."""

DTYPES = {"full": ("float32", "float64"), "bfloat16": ("uint16",), "int8": ("int8",)}
LARGEST = torch.finfo(torch.bfloat16).max
SMALLEST_PIVOT = 1e-6  # of the largest diagonal entry: what single precision cannot tell from zero


class Wrong(DataError):
    """Arrays that cannot be unpacked."""


def array_bytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


# --- numbers ---


def rounded(numbers: Tensor, kind: str, generator: torch.Generator) -> Arrays:
    """Return the numbers of a matrix, each at random one of its two neighbours that `kind` can say."""
    numbers = numbers.detach().cpu()
    if kind == "full":
        return {"values": numbers.numpy()}
    if kind == "bfloat16":  # the upper half of a float32; below it are 16 bits that may carry over
        bits = numbers.float().clamp(-LARGEST, LARGEST).contiguous().view(torch.int32)
        bits = bits + torch.randint(0, 1 << 16, bits.shape, generator=generator, dtype=torch.int32)
        return {"values": (bits.numpy() >> 16).astype(np.uint16)}
    scales = (numbers.abs().amax(dim=1) if numbers.numel() else numbers.new_zeros(len(numbers))).float() / 127
    steps = numbers / torch.where(scales > 0, scales, 1).unsqueeze(1)
    whole = steps.add_(torch.rand(steps.shape, generator=generator)).floor_().clamp_(-127, 127)
    return {"values": whole.to(torch.int8).numpy(), "scales": scales.numpy()}


def read_numbers(arrays: Arrays, kind: str, shape: tuple[int, int]) -> Tensor:
    """Return the matrix that `rounded` was given, as it was sent."""
    values = arrays["values"]
    if set(arrays) != {"values"} | ({"scales"} if kind == "int8" else set()) or str(values.dtype) not in DTYPES[kind]:
        raise Wrong(f"the numbers are not {kind}")
    if values.shape != shape:
        raise Wrong(f"has {values.shape} numbers, and should have {shape}")
    if kind == "full":
        found = torch.from_numpy(values)
    elif kind == "bfloat16":
        found = torch.from_numpy((values.astype(np.uint32) << 16).view(np.float32))
    else:
        scales = arrays["scales"]
        if scales.dtype != np.float32 or scales.shape != shape[:1]:
            raise Wrong("does not have one scale for each row")
        found = torch.from_numpy(values.astype(np.float32) * scales[:, None])
    if not bool(torch.isfinite(found).all()):
        raise Wrong("has numbers that are not finite")
    return found


# --- which rows and columns ---


def index_array(numbers: np.ndarray, size: int) -> np.ndarray:
    """Return ascending numbers below `size` as they are sent: themselves, or a bit for each of all, whichever is less.

    >>> index_array(np.array([1, 3]), 1000), index_array(np.array([1, 3]), 8)
    (array([1, 3], dtype=int32), array([80], dtype=uint8))
    """
    if 4 * len(numbers) < -(-size // 8):
        return numbers.astype(np.int32)
    bits = np.zeros(size, bool)
    bits[numbers] = True
    return np.packbits(bits)


def read_index(sent: np.ndarray, size: int) -> np.ndarray:
    """Return the numbers that `index_array` was given."""
    if sent.ndim == 1 and sent.dtype == np.uint8 and len(sent) == -(-size // 8):
        bits = np.unpackbits(sent)
        if bits[size:].any():
            raise Wrong(f"names a row or column beyond {size}")
        return np.flatnonzero(bits)
    numbers = sent.astype(np.int64)
    if sent.ndim != 1 or sent.dtype != np.int32 or (np.diff(numbers) <= 0).any():
        raise Wrong("its rows or columns are not ascending numbers")
    if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < size):
        raise Wrong(f"names a row or column beyond {size}")
    return numbers


def flat_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns of a tensor as a matrix. A vector is one row."""
    if len(shape) < 2:
        return 1, int(np.prod(shape))
    return shape[0], int(np.prod(shape[1:]))


@dataclass(frozen=True)
class Matrix:
    """A tensor as it is sent, before a receiver's rows are chosen. `columns` None: all."""

    numbers: Arrays
    columns: np.ndarray | None
    shape: tuple[int, int]

    @classmethod
    def of(cls, part: Tensor, kind: str, generator: torch.Generator, few: bool) -> Matrix:
        """`few`: leave out columns of zeros."""
        size = (part.shape[0], part.shape[1])
        if not few:
            return cls(rounded(part, kind, generator), None, size)
        columns = part.any(dim=0).nonzero().squeeze(1)
        kept = part if len(columns) == size[1] else part[:, columns]
        return cls(rounded(kept, kind, generator), columns.cpu().numpy(), size)

    def arrays(self, at: np.ndarray | slice, rows: np.ndarray | None, total: int) -> Arrays:
        """Return what travels: the rows `at` these places, which are `rows` of a matrix with `total` rows."""
        found = {name: np.ascontiguousarray(array[at]) for name, array in self.numbers.items()}
        if self.columns is not None and rows is not None:
            found["rows"], found["columns"] = index_array(rows, total), index_array(self.columns, self.shape[1])
        return found


def read_matrix(arrays: Arrays, kind: str, shape: tuple[int, int]) -> tuple[np.ndarray, Tensor]:
    """Return the rows that were sent, and their numbers in all columns."""
    arrays = dict(arrays)
    rows, columns = read_index(arrays.pop("rows"), shape[0]), read_index(arrays.pop("columns"), shape[1])
    numbers = read_numbers(arrays, kind, (len(rows), len(columns)))
    if len(columns) == shape[1]:
        return rows, numbers
    whole = numbers.new_zeros(len(rows), shape[1])
    whole[:, torch.from_numpy(columns)] = numbers
    return rows, whole


# --- what server and parties send ---


class Compression:
    """Packs and unpacks θ, changes of θ, and the sums of one round, as the settings say."""

    def __init__(self, settings: Experiment) -> None:
        self.seed = settings.seed
        self.own_rows = settings.compression.rows == "own"
        self.up, self.down = settings.compression.up, settings.compression.down
        self.of_cross = "bfloat16" if self.up == "int8" else self.up  # few numbers, of very different size
        self.keeps_errors = settings.compression.error_feedback
        self._by_feature: list[bool] | None = None

    @staticmethod
    def of(settings: Experiment) -> Compression | None:
        """Return what the settings ask for. None: tensors travel as they are."""
        return Compression(settings) if settings.compresses else None

    def rows_of(self, encoder: Encoder, features: np.ndarray | None) -> np.ndarray | None:
        """Return the rows of the first matrices that instances with these features need (`features` None: all of
        them). None: rows are not chosen."""
        if not (self.own_rows and encoder.takes_some_features):
            return None
        if features is None:
            return np.arange(next(encoder.parameters()).shape[0])
        return encoder.rows_for(torch.from_numpy(features)).numpy()

    def by_feature(self, encoder: Encoder) -> list[bool]:
        """Return which parameters have a row for each feature."""
        if not (self.own_rows and encoder.takes_some_features):
            return [False for _ in encoder.parameters()]
        if self._by_feature is None:
            few = encoder.for_features(torch.zeros(0, dtype=torch.int64, device=next(encoder.parameters()).device))
            pairs = zip(encoder.parameters(), few.parameters(), strict=True)
            self._by_feature = [one is not other for one, other in pairs]
        return self._by_feature

    # --- down ---

    def outgoing(self, model: Model, round_number: int) -> Outgoing:
        """Return θ as all parties get it in this round, before their rows are chosen."""
        generator = torch_generator(self.seed, "rounding of θ", round_number)
        by_feature, theta = self.by_feature(model.encoder), [parameter.detach() for parameter in model.theta]
        parts = [
            Matrix.of(one.reshape(flat_shape(one.shape)), self.down, generator, few)
            for one, few in zip(theta, by_feature, strict=True)
        ]
        return Outgoing(parts, by_feature, theta, self.down)

    # --- up ---

    def change(
        self, change: Sequence[Tensor], encoder: Encoder, rows: np.ndarray | None, round_number: int, sender: int
    ) -> list[Arrays]:
        """Return what a party sends of its change. `sender`: a number of its own, for the draws of the rounding."""
        generator, packed = torch_generator(self.seed, "rounding", round_number, sender), []
        for tensor, few in zip(change, self.by_feature(encoder), strict=True):
            total, whole = flat_shape(tensor.shape)[0], slice(None)
            if not few or rows is None:
                dense = tensor.to_dense().reshape(flat_shape(tensor.shape))
                packed.append(Matrix.of(dense, self.up, generator, False).arrays(whole, None, total))
            else:
                part = rows_of(tensor, rows)
                packed.append(Matrix.of(part, self.up, generator, True).arrays(whole, rows, total))
        return packed

    def read_change(
        self, packed: Sequence[Arrays], encoder: Encoder, sparse: bool = False
    ) -> tuple[list[Tensor], np.ndarray | None]:
        """Return a change as the server reads it, and the party's rows. `sparse`: rows alone, not whole matrices."""
        return self._read(packed, encoder, self.up, sparse)

    def read_theta(self, packed: Sequence[Arrays], encoder: Encoder) -> tuple[list[Tensor], np.ndarray | None]:
        """Return θ as a party reads it, and the rows that it got. Others are zeros."""
        return self._read(packed, encoder, self.down)

    def _read(
        self, packed: Sequence[Arrays], encoder: Encoder, kind: str, sparse: bool = False
    ) -> tuple[list[Tensor], np.ndarray | None]:
        found: list[Tensor] = []
        rows: np.ndarray | None = None
        for arrays, few, like in zip(packed, self.by_feature(encoder), encoder.parameters(), strict=True):
            shape = flat_shape(like.shape)
            if not few:
                found.append(read_numbers(arrays, kind, shape).to(like.dtype).reshape(like.shape))
                continue
            these, part = read_matrix(arrays, kind, shape)
            if rows is not None and not np.array_equal(rows, these):
                raise Wrong("has other rows of one matrix than of another")
            rows = these
            found.append(_in_place(torch.from_numpy(rows), part.to(like.dtype), shape, sparse))
        return found, rows

    # --- the sums of one round ---

    def sums(self, gram: Tensor, cross: Tensor, rows: np.ndarray, total: int, records: int, sender: int) -> Arrays:
        """Return what a party sends of its sums: of G a triangular factor, and a column of B for each label.

        `gram` and `cross` have these rows alone, of `total`. `records`: how many G is a sum over."""
        generator = torch_generator(self.seed, "rounding of sums", sender)
        factor, order = triangular_factor(gram, records)
        rank = factor.shape[1]
        packed = rounded(factor, self.up, generator)
        packed["values"] = packed["values"][lower_part(*factor.shape)]  # the rest are zeros
        labels = {f"cross-{name}": array for name, array in rounded(cross.T, self.of_cross, generator).items()}
        of_factor = {"order": rows[order].astype(np.int32), "rank": np.array([rank], np.int32)}
        return packed | labels | of_factor | {"rows": index_array(rows, total)}

    def read_sums(self, arrays: Arrays, total: int, labels: int, dtype: torch.dtype) -> PartySums:
        """Return what `sums` was given."""
        arrays = dict(arrays)
        rows, order, rank = read_index(arrays.pop("rows"), total), arrays.pop("order"), arrays.pop("rank")
        cross = {name: arrays.pop(f"cross-{name}") for name in ("values", "scales") if f"cross-{name}" in arrays}
        of_labels = read_numbers(cross, self.of_cross, (labels, len(rows))).T
        if rank.shape != (1,) or not 0 <= rank[0] <= len(rows):
            raise Wrong("its factor has more columns than rows")
        size, columns = (len(rows) if rank[0] else 0), int(rank[0])
        if order.shape != (size,) or (size and not np.array_equal(np.sort(order), rows)):
            raise Wrong("the rows of its factor are not its rows")
        at, values = lower_part(size, columns), arrays["values"]
        if values.shape != (len(at[0]),):
            raise Wrong(f"its factor has {values.shape} numbers, and should have {len(at[0])}")
        whole = np.zeros((size, columns), values.dtype)
        whole[at] = values
        factor = read_numbers(arrays | {"values": whole}, self.up, (size, columns)).double()
        place = torch.from_numpy(np.searchsorted(rows, order))
        gram = torch.zeros(size, size, dtype=torch.float64)
        gram[place.unsqueeze(1), place] = factor @ factor.T
        return PartySums(rows, gram.to(dtype), of_labels.to(dtype), total)


@dataclass(frozen=True)
class PartySums:
    """A party's sums as the server reads them: those of its rows."""

    rows: np.ndarray
    gram: Tensor
    cross: Tensor
    total: int

    def whole(self, with_gram: bool) -> tuple[Tensor, Tensor]:
        """Return half of G, and B, with all rows."""
        at = torch.from_numpy(self.rows)
        cross = self.cross.new_zeros(self.total, self.cross.shape[1])
        cross[at] = self.cross
        gram = self.gram.new_zeros((self.total, self.total) if with_gram else (0, 0))
        if len(self.gram):
            gram[at.unsqueeze(1), at] = self.gram
        return half_of(gram), cross


@dataclass(frozen=True)
class Outgoing:
    """θ as all parties get it in a round."""

    parts: list[Matrix]
    by_feature: list[bool]
    theta: list[Tensor]
    kind: str

    def arrays(self, rows: np.ndarray | None) -> list[Arrays]:
        """Return what a party gets that needs these rows. None: all."""
        found = []
        for part, few in zip(self.parts, self.by_feature, strict=True):
            total = part.shape[0]
            if not few or rows is None:
                found.append(part.arrays(slice(None), np.arange(total) if few else None, total))
            else:
                found.append(part.arrays(rows, rows, total))
        return found

    def received(self) -> list[Tensor] | None:
        """Return θ as the parties read it. None if it is θ itself."""
        if self.kind == "full":
            return None
        found = []
        for part, like in zip(self.parts, self.theta, strict=True):
            size = (part.shape[0], part.shape[1] if part.columns is None else len(part.columns))
            numbers = read_numbers(part.numbers, self.kind, size)
            if part.columns is not None:
                whole = numbers.new_zeros(part.shape)
                whole[:, torch.from_numpy(part.columns)] = numbers
                numbers = whole
            found.append(numbers.to(like).reshape(like.shape))
        return found


def with_theta(model: Model, theta: Sequence[Tensor]) -> Model:
    """Return the model with other parameters of its encoder."""
    encoder = copy.deepcopy(model.encoder)
    with torch.no_grad():
        for parameter, value in zip(encoder.parameters(), theta, strict=True):
            parameter.copy_(value)
    return replace(model, encoder=encoder)


class KeptErrors:
    """What rounding took off the changes of each party, which it adds to its next one (`error_feedback`)."""

    def __init__(self) -> None:
        self.of: dict[int, list[Tensor]] = {}

    def added(self, party: int, change: Sequence[Tensor]) -> list[Tensor]:
        dense = [tensor.to_dense() for tensor in change]
        return [one + error for one, error in zip(dense, self.of[party], strict=True)] if party in self.of else dense

    def keep(self, party: int, wanted: Sequence[Tensor], sent: Sequence[Tensor]) -> None:
        self.of[party] = [one - other.to_dense() for one, other in zip(wanted, sent, strict=True)]

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {f"errors.{party}.{i}": one for party, errors in self.of.items() for i, one in enumerate(errors)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.of = {}
        for name in sorted((n for n in tensors if n.startswith("errors.")), key=lambda n: int(n.split(".")[2])):
            self.of.setdefault(int(name.split(".")[1]), []).append(tensors[name])


class KnownRows:
    """The rows of each party that the server has been told, with the party's first change."""

    def __init__(self) -> None:
        self.of: dict[int, np.ndarray] = {}

    def note(self, party: int, rows: np.ndarray | None) -> None:
        if rows is not None:
            self.of[party] = rows

    def forget(self, party: int) -> None:
        """Send it all rows again: it could not use what it got, or gave no usable answer."""
        self.of.pop(party, None)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {f"own_rows.{party}": torch.from_numpy(rows.astype(np.int64)) for party, rows in self.of.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        prefix = "own_rows."
        self.of = {int(k.removeprefix(prefix)): v.numpy() for k, v in tensors.items() if k.startswith(prefix)}


# --- matrices ---


def rows_of(tensor: Tensor, rows: np.ndarray) -> Tensor:
    """Return these rows of a matrix. A sparse one has no others."""
    at = torch.from_numpy(rows)
    if not tensor.is_sparse:
        return tensor.detach()[at.to(tensor.device)]
    tensor = tensor.coalesce()
    part = tensor.values().new_zeros(len(rows), tensor.shape[1])
    part[torch.searchsorted(at, tensor.indices()[0].cpu())] = tensor.values()
    return part


def _in_place(rows: Tensor, part: Tensor, shape: tuple[int, int], sparse: bool) -> Tensor:
    if sparse:
        indices = rows.unsqueeze(0)
        return torch.sparse_coo_tensor(indices, part, shape, is_coalesced=True, check_invariants=False)
    whole = part.new_zeros(shape)
    whole[rows] = part
    return whole


def triangular_factor(gram: Tensor, rank: int) -> tuple[Tensor, np.ndarray]:
    """Return L and an order of the rows with L Lᵀ = G in this order. L has at most `rank` columns, and is zero above
    its diagonal. G is symmetric and has no negative eigenvalue.

    >>> factor, order = triangular_factor(torch.tensor([[1.0, 2.0], [2.0, 4.0]]), 1)
    >>> factor.tolist(), order.tolist()
    ([[2.0], [1.0]], [1, 0])
    """
    size = len(gram)
    if not size or not bool(gram.any()):
        return gram.new_zeros(0, 0), np.zeros(0, np.int64)
    least = SMALLEST_PIVOT if gram.dtype == torch.float32 else 1e-14
    whole = gram.double().cpu().numpy()
    factor, order, found, _ = lapack.dpstrf(whole, tol=least * whole.diagonal().max(), lower=1)
    return torch.from_numpy(np.tril(factor)[:, : min(found, rank)]).to(gram), cast(np.ndarray, order) - 1


def lower_part(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of a matrix on and below its diagonal, row by row."""
    return np.tril_indices(rows, 0, columns)


def own_features(federation: Federation, clients: np.ndarray) -> np.ndarray:
    """Return the features that the records of these clients have, ascending."""
    instances, _ = federation.pairs_of(clients)
    return np.unique(federation.features[instances].indices).astype(np.int64)
