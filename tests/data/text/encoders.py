"""A tiny sentence encoder with random weights, in transformers' or sentence-transformers' layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "wheat", "corn", "oil", "gas", "and", "cheap", "prices", "grain"]


def make_encoder(folder: Path, pooling: str | None = None, normalize: bool = False, seed: int = 0) -> Path:
    """Write an encoder of 8 features. `pooling`: with a modules.json that names it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors  # slow to load
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, **names).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        network = BertModel(BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=16, **shape))
    network.save_pretrained(folder, safe_serialization=True)
    if pooling is not None:
        kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
        modules = [
            {"idx": place, "name": str(place), "path": "1_Pooling" if place == 1 else "", "type": f"st.models.{kind}"}
            for place, kind in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        flags = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens")}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    return folder
