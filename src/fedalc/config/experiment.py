"""An experiment: all settings of a run, checked, and how they are written as TOML.

`schema` has the sections, `compatibility` what goes together; `resolve` puts an `Experiment` together from preset, file
and command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from fedalc.config import compatibility
from fedalc.config.facts import method_facts
from fedalc.config.oracle_schema import (
    MlpSettings,
    NapkinxcSettings,
    OmikujiSettings,
    OvrSettings,
    SleecSettings,
)
from fedalc.config.schema import (
    NONE,
    ClientSettings,
    CollectionSettings,
    CompressionSettings,
    Count,
    EmbeddingSettings,
    EncoderSettings,
    FixedSettings,
    HashingSettings,
    ImageSettings,
    MethodName,
    PresetName,
    PrivacySettings,
    RegularizerSettings,
    SecureSumSettings,
    SelectionSettings,
    ServerSettings,
    Settings,
    TableSettings,
    TextSettings,
    TuningSettings,
)
from fedalc.core.blocks import DEFAULT_BUDGET, read_budget
from fedalc.core.explain import explained
from fedalc.errors import either

Option = str | bool | int | float | list[str | bool | int | float] | None


def _run_name(name: str) -> str:
    if not name or "/" in name or "\\" in name:
        raise ValueError(
            f"{name!r:.60} cannot be a run folder's name: leave out / and \\, and say where it goes with "
            + either("--out", "folder=")
        )
    return name


class Experiment(Settings):
    """All settings of a run. With the data, they determine its result."""

    name: Annotated[str, AfterValidator(_run_name)] | None = None
    """Name of the run folder. none: made of dataset, method, preset and seed."""
    dataset: str = "demo"
    """Name of a dataset (`fedalc data list`), or path of a file or folder."""
    method: MethodName = "fedalc"
    """What is computed (`fedalc methods`)."""
    preset: PresetName = "strong"
    """Where defaults come from. strong: the best honest result. mlp: a network with one hidden layer. paper: the
    settings of the paper. demo: shows the collapse."""
    task: Literal["classification", "verification"] = "classification"
    """What is measured and chosen by. verification: labels are persons, whose claimed identity is accepted or refused
    (docs/verification.md)."""
    engine: Literal["fused", "lockstep", "clients", "flower"] = "fused"
    """Where it is computed. fused: one step of all clients at once, exact and fast. lockstep: any local schedule, the
    steps of many clients at once; the default with client.epochs or client.batch_size. clients: client by client, to
    compare with; the default with them for pictures. flower: real parties (docs/deployment.md)."""
    clients: Literal["labels", "users", "parties"] = "labels"
    """labels: a client per label. users: a client per label and user, if the data has users. parties: a client per
    label and party, for a folder with a folder per party; with real parties: several may have the same label
    (docs/parties.md)."""
    rounds: Count = 100
    """Communication rounds, at most (see [selection])."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """The same seed and settings give the same result."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, …"""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of the numbers. float64 takes twice the memory and more than twice the time."""
    block_rows: Count = 2048
    """Instances encoded at a time. Limits memory (and is the batch of encoder.norm = "batch")."""
    memory_budget: Annotated[int, BeforeValidator(read_budget)] = DEFAULT_BUDGET
    """Memory limit per block, in bytes or as "2GB" (docs/scale.md). Does not change results."""
    shard_rows: Literal["auto", "on", "off"] = "auto"
    """Split W over several processes (docs/cluster.md). auto: if W has more than 2 GB."""
    images: ImageSettings = ImageSettings()
    table: TableSettings = TableSettings()
    text: TextSettings = TextSettings()
    encoder: EncoderSettings = EncoderSettings()
    client: ClientSettings = ClientSettings()
    server: ServerSettings = ServerSettings()
    secure_sums: SecureSumSettings = SecureSumSettings()
    compression: CompressionSettings = CompressionSettings()
    embeddings: EmbeddingSettings = EmbeddingSettings()
    hashing: HashingSettings = HashingSettings()
    regularizer: RegularizerSettings = RegularizerSettings()
    fixed: FixedSettings = FixedSettings()
    collection: CollectionSettings = CollectionSettings()
    privacy: PrivacySettings = PrivacySettings()
    selection: SelectionSettings = SelectionSettings()
    tuning: TuningSettings = TuningSettings()
    ovr: OvrSettings = OvrSettings()
    sleec: SleecSettings = SleecSettings()
    mlp: MlpSettings = MlpSettings()
    omikuji: OmikujiSettings = OmikujiSettings()
    napkinxc: NapkinxcSettings = NapkinxcSettings()
    options: dict[str, Option] = {}
    """Settings of a method of your own (docs/extending.md)."""

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, values: Any, handler: ModelWrapValidatorHandler[Experiment], info: ValidationInfo) -> Experiment:
        """Raise a ConfigError that names the field, and the file that the settings are from."""
        try:
            return handler(values)
        except ValidationError as error:
            raise explained(error, Experiment, (info.context or {}).get("file")) from None

    @model_validator(mode="after")
    def _settings_agree(self, info: ValidationInfo) -> Experiment:
        if not (info.context or {}).get("values_only"):
            compatibility.check(self)
        return self

    @property
    def uses_labels(self) -> bool:
        """Whether label sets are collected: the method learns from them, or the loss or W's start needs counts."""
        return method_facts(self.method).uses_labels or self.needs_counts

    @property
    def needs_counts(self) -> bool:
        sizes = self.client.set_size != "ignored" or self.weighs_labels
        by_counts = (self.client.loss != "hinge" and sizes) or self.embeddings.start == "by-frequency"
        return by_counts

    @property
    def weighs_labels(self) -> bool:
        return self.client.loss == "square" and self.client.label_power > 0

    @property
    def compresses(self) -> bool:
        """Whether anything travels in fewer bytes. A method of one round sends no θ down."""
        what, one_round = self.compression, method_facts(self.method).one_round
        return what.rows != "all" or what.up != "full" or (what.down != "full" and not one_round)

    @property
    def tells_shares(self) -> bool:
        """Whether the server tells each party how many labels each of its records has."""
        return self.client.loss != "hinge" and self.client.set_size == "exact"

    def __repr__(self) -> str:
        """Say the most important settings; `to_toml` has all."""
        said = f"preset {self.preset}, encoder {self.encoder.name}, {self.rounds} rounds, seed {self.seed}"
        return f"<fedalc.Experiment {self.method} on {self.dataset}: {said}>"

    __str__ = __repr__

    def __hash__(self) -> int:
        return hash(self.to_toml())  # a dict, as `options` is, has no hash

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def to_toml(self) -> str:
        return tomli_w.dumps(_without_none(self.to_dict()))


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as `Experiment.to_dict` has them, each under its full name: {"encoder.name": "mlp", …}."""
    named: dict[str, Any] = {}
    for key, value in settings.items():
        named |= {f"{key}.{name}": own for name, own in value.items()} if isinstance(value, dict) else {key: value}
    return named


def _without_none(value: Any) -> Any:
    """Return the settings with "none" for None, which TOML does not have."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items()}
    return NONE if value is None else value
