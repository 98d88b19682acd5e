"""Check the device to compute on."""

from __future__ import annotations

import torch

from fedalc.errors import ConfigError


def check_device(device: str) -> None:
    try:
        torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"there is no device {device!r:.60}: use cpu, cuda, cuda:1 or mps", "device") from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"cannot use {device!r}: {first}", "device") from None
