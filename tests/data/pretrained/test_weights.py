"""Where weights are found, and how they are told apart."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

from fedalc.data.pretrained.usual import is_for_texts, usual_size
from fedalc.data.pretrained.weights import digest_of, find_weights
from fedalc.errors import ConfigError


def write(path: Path, content: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_a_file_a_folder_and_the_only_weights_below_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "a" / "deep" / "net.pth")
    assert find_weights(file) == find_weights(str(tmp_path / "a")) == file
    config = write(tmp_path / "b" / "config.json")
    assert find_weights(tmp_path / "b") == config.parent
    write(tmp_path / "c" / "model" / "config.json")
    write(tmp_path / "c" / "model" / "x.safetensors")
    assert find_weights(tmp_path / "c") == tmp_path / "c" / "model"


def test_what_is_not_found_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        find_weights(tmp_path / "absent")
    with pytest.raises(ConfigError, match="no weights in it"):
        find_weights(tmp_path)
    write(tmp_path / "one.pth")
    write(tmp_path / "two.onnx")
    with pytest.raises(ConfigError, match="2 weights in it: name one"):
        find_weights(tmp_path)
    with pytest.raises(ConfigError, match=r"expected \.pth"):
        find_weights(write(tmp_path / "weights.txt"))


def test_a_package_is_looked_into_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "brings_weights" / "models" / "net.pth")
    write(tmp_path / "brings_weights" / "__init__.py", "raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_weights("package:brings_weights") == file
    assert "brings_weights" not in sys.modules
    for name in ("absent_package", "os.path", "brings_weights.models", "/etc"):
        with pytest.raises(ConfigError, match="is not installed"):
            find_weights(f"package:{name}")


def test_a_digest_is_of_the_content(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.pth", "x"), write(tmp_path / "b.pth", "x")
    assert digest_of(one) == digest_of(other)
    assert digest_of(one) != digest_of(write(tmp_path / "c.pth", "y"))
    folder = write(tmp_path / "net" / "config.json").parent
    before = digest_of(folder)
    write(folder / "README.md")
    assert digest_of(folder) == before, "it does not decide about rows"
    write(folder / "model.safetensors")
    assert digest_of(folder) != before


def test_a_digest_of_onnx_covers_the_file_of_its_weights(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    weights = onnx.numpy_helper.from_array(np.ones(300, dtype=np.float32), "weights")
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [300])]
    nodes = [onnx.helper.make_node("Identity", ["weights"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [], outputs, [weights])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "one.onnx")
    assert digest_of(tmp_path / "one.onnx") == hashlib.sha256((tmp_path / "one.onnx").read_bytes()).hexdigest()
    place = {"save_as_external_data": True, "location": "two.data", "size_threshold": 0}
    onnx.save(onnx.helper.make_model(graph), tmp_path / "two.onnx", **place)
    before, data = digest_of(tmp_path / "two.onnx"), (tmp_path / "two.data").read_bytes()
    (tmp_path / "two.data").write_bytes(data[:-1] + b"\1")
    assert digest_of(tmp_path / "two.onnx") != before
    (tmp_path / "two.data").write_bytes(data)
    write(tmp_path / "three.data")
    assert digest_of(tmp_path / "two.onnx") == before


@pytest.mark.parametrize(
    ("config", "prepared", "side"),
    [
        ("{}", None, 224),
        ('{"image_size": 48}', None, 48),
        ('{"vision_config": {"image_size": 64}}', None, 64),
        ('{"image_size": 48}', '{"size": {"shortest_edge": 80}, "crop_size": {"height": 72, "width": 72}}', 72),
        ('{"image_size": 48}', '{"size": {"shortest_edge": 80}}', 80),
        ('{"image_size": true}', '{"size": -3}', 224),
    ],
)
def test_the_usual_size(tmp_path: Path, config: str, prepared: str | None, side: int) -> None:
    write(tmp_path / "config.json", config)
    if prepared is not None:
        write(tmp_path / "preprocessor_config.json", prepared)
    assert usual_size([tmp_path]) == side
    assert usual_size([write(tmp_path / "net.pth")]) == 160


def test_sentence_encoders_have_a_tokenizer_and_no_part_for_pictures(tmp_path: Path) -> None:
    write(tmp_path / "config.json")
    assert not is_for_texts(tmp_path)
    write(tmp_path / "tokenizer.json")
    assert is_for_texts(tmp_path)
    write(tmp_path / "config.json", '{"vision_config": {}}')
    assert not is_for_texts(tmp_path), "CLIP has both"
    assert not is_for_texts(write(tmp_path / "net.pth"))
