"""At a party: its own pretrained network, which it reads from its own folder, never from one that the server names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedalc.config.experiment import Experiment
from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.deployment.flower.wire import BadMessage
from fedalc.workflows.inputs import views_of

PRETRAINED, BETWEEN = "pretrained", "\n"  # in a party's configuration, several networks are separated by this


def own_weights(config: Mapping[str, Any]) -> list[str]:
    """Return where the party's networks are."""
    return [source for source in str(config.get(PRETRAINED, "")).split(BETWEEN) if source]


def own_network(config: Mapping[str, Any], settings: Experiment) -> PictureFeatures | None:
    """Return what turns the party's pictures into features, if the run is on such features and the party's weights are
    the run's."""
    if not settings.encoder.frozen:
        return None
    wanted, sources = settings.encoder.weights, own_weights(config)
    if wanted is None:
        raise BadMessage("is on the features of a pretrained network, and does not name its weights (encoder.weights)")
    if not sources:
        raise BadMessage(
            f"is on the features of a pretrained network with weights {wanted[:12]}…, and this party has none "
            "(--pretrained)"
        )
    pictures = PictureFeatures.open(sources, views_of(settings), settings.device)
    if pictures.digest != wanted:
        raise BadMessage(
            f"is on the features of a pretrained network with weights {wanted[:12]}…, and this party's weights are "
            f"{pictures.digest[:12]}… (--pretrained)"
        )
    return pictures
