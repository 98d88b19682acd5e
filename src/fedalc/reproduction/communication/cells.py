"""Cells of the communication table: a method on an image dataset of the paper, or all methods on a text dataset."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.config.schema import Count, MethodName, PresetName, Settings
from fedalc.data.catalog import datasets as catalog
from fedalc.errors import ConfigError
from fedalc.methods import METHODS
from fedalc.reproduction.communication.traffic import Shape, Traffic, encoder_traffic


class Published(Settings):
    server: Decimal
    client: Decimal


class ImageCell(Settings):
    """One method on one dataset in the paper's table."""

    dataset: str
    method: MethodName
    labels: Count
    images: Count
    dim: Count
    rounds: Count
    published: Published
    slip: str = ""  # what gives the published figure, if the convention does not

    def paper_embeddings(self) -> tuple[Decimal, Decimal]:
        """Return the size of W and of a row as the paper counts them."""
        W, row = (paper_megabytes(rows * self.dim * PAPER_NUMBER) for rows in (self.labels, 1))
        return W, row

    @property
    def rows_travel(self) -> bool:
        """Return whether rows are sent in every round."""
        return METHODS[self.method].trains_rows

    @property
    def payload(self) -> tuple[bool, int, int]:
        """Return everything that the bytes of a round depend on."""
        return self.rows_travel, self.labels, self.dim

    def convention(self) -> Published:
        """Return the figures by the paper's convention: 23 and W, or 23 and a row, per round; a fixed W once."""
        model = self.rounds * PAPER_MODEL
        W, row = self.paper_embeddings()
        if self.rows_travel:
            return Published(
                server=_one_decimal(model + self.rounds * W), client=_one_decimal(model + self.rounds * row)
            )
        return Published(server=_one_decimal(model + W), client=model)

    def verdict(self) -> str:
        return "met" if self.published == self.convention() else self.slip or "not met"

    def settings(self, norm: str = "group") -> Experiment:
        encoder = {"name": "resnet50", "dim": self.dim, "norm": norm}
        keys = {"method": self.method, "preset": "paper", "engine": "clients", "rounds": self.rounds}
        return experiment(keys | {"encoder": encoder})

    def traffic(self) -> Traffic:
        return encoder_traffic(self.settings(), 0, Shape(self.labels, self.labels, self.images))


PAPER_MODEL = Decimal(23)  # millions of parameters, added up as if they were MB
PAPER_NUMBER = 8  # bytes


def paper_megabytes(size: int) -> Decimal:
    """Return MiB with one decimal; below 1 MiB, KiB / 1000.

    >>> paper_megabytes(1628 * 512 * 8), paper_megabytes(20 * 512 * 8), paper_megabytes(512 * 8)
    (Decimal('6.4'), Decimal('0.08'), Decimal('0.004'))
    """
    kib = Decimal(size) / 1024
    return kib / 1000 if kib < 1024 else _one_decimal(kib / 1024)


def _one_decimal(value: Decimal) -> Decimal:
    return value.quantize(Decimal("0.1"), ROUND_HALF_UP)


class TextRows(Settings):
    """All methods on one dataset of the catalog."""

    dataset: str
    presets: tuple[PresetName, ...]

    def traffic(self, settings: Experiment) -> Traffic:
        known = catalog.entry(self.dataset).statistics
        if known is None or known.features is None:
            raise ConfigError(f"the catalog has no statistics of {self.dataset}", "dataset")
        pairs = round(known.train * known.labels_per_instance)
        return encoder_traffic(settings, known.features, Shape(known.labels, known.labels, pairs))
