"""Frozen sentence encoders as features: a transformers network from a folder, and the pooling of its outputs.

The folder has transformers' layout (config.json, tokenizer files, weights), or that of sentence-transformers, whose
modules.json says how the outputs of a text's tokens become one row. Weights are safetensors only: other files are
pickles, which can run any code. A model keeps the folder's path and the digest of its files, not the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.errors import ConfigError

FIELD = "text.encoder"
VERSION = 1
"""Raise it when the same files would give other rows."""
LONGEST = 512  # tokens of a text, unless the folder says otherwise


@dataclass(frozen=True)
class Pooling:
    """How the outputs of a text's tokens become one row."""

    mode: str = "mean"  # mean, max, or cls: the first token's output
    normalize: bool = False
    longest: int | None = None  # tokens
    lowercase: bool = False


def read_pooling(folder: Path) -> Pooling:
    """Read modules.json and the files that it names. Without it: the mean."""
    if not (folder / "modules.json").is_file():
        return Pooling()
    modules = _json(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ConfigError(f"{folder / 'modules.json'}: expected a list of modules", FIELD)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise ConfigError(
            f"{folder / 'modules.json'}: its modules are {', '.join(kinds) or 'none'}, but fedalc reads Transformer, "
            "Pooling and perhaps Normalize",
            FIELD,
        )
    if modules[0].get("path") not in ("", "."):
        raise ConfigError(f"{folder / 'modules.json'}: the network should be in the folder itself", FIELD)
    try:
        place = (folder / str(modules[1].get("path", ""))).resolve()
        outside = not place.is_relative_to(folder.resolve())
    except (OSError, ValueError):  # no path at all: a null character, half of a surrogate pair, too long
        outside = True
    if outside:
        raise ConfigError(f"{folder / 'modules.json'}: names a folder outside: {modules[1].get('path')!r:.60}", FIELD)
    longest, lowercase = None, False
    if (folder / "sentence_bert_config.json").is_file():
        more = _object(folder / "sentence_bert_config.json")
        longest, lowercase = more.get("max_seq_length"), more.get("do_lower_case", False)
        if longest is not None and (type(longest) is not int or longest < 1):
            raise ConfigError(f"{folder}: max_seq_length {longest!r:.60} is not a number of tokens", FIELD)
    return Pooling(_mode(place / "config.json"), len(kinds) == 3, longest, lowercase is True)


def _mode(path: Path) -> str:
    facts = _object(path)
    named = facts.get("pooling_mode")  # newer folders; older ones have a truth value per mode
    flags = {"mean": "mean_tokens", "max": "max_tokens", "cls": "cls_token"}
    chosen = [named] if named else [key for key, value in facts.items() if key.startswith("pooling_mode_") and value]
    modes = [mode for mode, flag in flags.items() if chosen in ([mode], [f"pooling_mode_{flag}"])]
    if not modes:
        raise ConfigError(f"{path}: pooling {chosen}, but fedalc has one of {', '.join(flags)}", FIELD)
    return modes[0]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", FIELD) from None


def _object(path: Path) -> dict[str, Any]:
    value = _json(path)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object", FIELD)
    return value


class SentenceNetwork:
    """A loaded network with its tokenizer."""

    def __init__(self, folder: Path, device: str) -> None:
        self.pooling = read_pooling(folder)
        self.device = device
        self._tokenizer, self._network = _load(folder)
        self._network.to(device)
        self.width = int(self._network.config.hidden_size)
        positions = getattr(self._network.config, "max_position_embeddings", None)
        limits = (self.pooling.longest, positions, self._tokenizer.model_max_length, LONGEST)
        self._longest = min(limit for limit in limits if isinstance(limit, int) and limit > 0)

    def rows(self, texts: list[str]) -> np.ndarray:
        """Return a row per text. The last bits depend on the other texts of the batch."""
        import torch

        if self.pooling.lowercase:
            texts = [text.lower() for text in texts]
        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt"
        ).to(self.device)
        with torch.inference_mode():
            tokens = self._network(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1).to(tokens.dtype)
            if self.pooling.mode == "cls":
                rows = tokens[:, 0]
            elif self.pooling.mode == "max":
                rows = tokens.masked_fill(mask == 0, -torch.inf).amax(dim=1)
            else:
                rows = (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            if self.pooling.normalize:
                rows = torch.nn.functional.normalize(rows, dim=1)
        return rows.float().cpu().numpy()


def _load(folder: Path) -> tuple[Any, Any]:
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise ConfigError("needs the extra: pip install 'fedalc[text]'", FIELD) from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        # Never load a pickle. (The library's type hints do not mention the loading report.)
        loaded: Any = AutoModel.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # the library raises errors of many kinds; all mean files that it cannot use
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{folder}: not a sentence encoder that can be read: {first}", FIELD) from None
    network, report = loaded
    lacking = sorted(key for key in report["missing_keys"] if "pooler." not in key)  # of a part that is not used
    if lacking:
        raise ConfigError(f"{folder}: lacks weights, such as {lacking[0]}", FIELD)
    facts = network.config
    if not isinstance(getattr(facts, "hidden_size", None), int):
        raise ConfigError(f"{folder}: a network of kind {facts.model_type!r:.40}, not a sentence encoder", FIELD)
    if len(tokenizer) < getattr(facts, "vocab_size", 0) / 2:  # without its files the library makes up an empty one
        raise ConfigError(
            f"{folder}: its tokenizer has {len(tokenizer)} tokens, and the network {facts.vocab_size}: a file such as "
            "tokenizer.json or vocab.txt is missing",
            FIELD,
        )
    return tokenizer, network.eval()
