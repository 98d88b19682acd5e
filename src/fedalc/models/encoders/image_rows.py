"""A block of pictures as the input of an encoder. It reads pixels when needed, or ahead in another thread."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from fedalc.data.images.images import Images
from fedalc.models.encoders.chance import Chance

# Statistics of ImageNet per channel, in [0, 1]: published ResNets are trained with them.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class PictureRows:
    """Some pictures. `keys` identify the instances, so that the draws for one are the same wherever it is encoded."""

    def __init__(self, images: Images, keys: np.ndarray, dtype: torch.dtype, device: torch.device | str) -> None:
        self.keys = torch.from_numpy(np.asarray(keys, dtype=np.int64)).to(device)
        self._images = images
        self._dtype = dtype
        self._coming: _Coming | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def prefetch(self) -> None:
        """Start reading in another thread."""
        if self._coming is None:
            self._coming = _Coming(self._images)

    def pixels(self, chance: Chance | None = None) -> Tensor:
        """Return N × 3 × size × size, scaled as published networks expect it. Not cached, to save memory."""
        self.prefetch()
        assert self._coming is not None
        raw, self._coming = self._coming.get(), None
        device = self.keys.device
        pictures = torch.from_numpy(raw).to(device)
        if chance:
            pictures = chance.moved(pictures, self.keys)
        return network_input(pictures, self._dtype).contiguous(memory_format=torch.channels_last)


def network_input(pictures: Tensor, dtype: torch.dtype) -> Tensor:
    """Return pixels in 0 to 255, N × size × size × 3, as published networks expect them: N × 3 × size × size."""
    pixels = pictures.permute(0, 3, 1, 2).to(dtype).div_(255)
    mean, deviation = (torch.tensor(v, dtype=dtype, device=pixels.device).view(3, 1, 1) for v in (MEAN, DEVIATION))
    return pixels.sub_(mean).div_(deviation)


class _Coming:
    def __init__(self, images: Images) -> None:
        self._pixels: np.ndarray | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(images,), daemon=True)
        self._thread.start()

    def _read(self, images: Images) -> None:
        try:
            self._pixels = images.pixels()
        except BaseException as error:  # raised again by `get`
            self._error = error

    def get(self) -> np.ndarray:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._pixels is not None
        return self._pixels
