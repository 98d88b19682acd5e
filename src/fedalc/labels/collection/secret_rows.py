"""Secret class embeddings: clients turn all rows of W by one rotation, drawn under their key (docs/exact.md).

The server has W as it drew it. Scores are products of W's rows with the encoder's outputs, which training turns by the
same rotation, so that all losses, sums and rankings are those of the rows before the turn.
"""

from __future__ import annotations

from torch import Tensor

from fedalc.labels.collection.hashing import Hasher
from fedalc.models.class_embeddings import secret_rotation


def turned(W: Tensor, hasher: Hasher) -> Tensor:
    """Return W R, all rows of W, or some, turned by the rotation R of the hasher's key and run."""
    rotation = secret_rotation(hasher.secret("rotation"), W.shape[1])
    return (W.detach().cpu().double() @ rotation).to(W)
