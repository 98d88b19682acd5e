"""Pictures to the rows of frozen networks: views, several networks, and what a model keeps of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedalc.data.pretrained.pictures import PictureFeatures, Views, resized
from fedalc.errors import ConfigError, DataError
from tests.data.pretrained.networks import SIDE, pictures, save_resnet, save_vit

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_resnet(tmp_path / "net")
    return tmp_path / "net"


def test_views_are_averaged(folder: Path) -> None:
    images = pictures(3)
    network = PictureFeatures.open([folder], Views(SIDE)).weights[0].opened("cpu")
    plain, pixels = network.rows(images.pixels()), images.pixels()
    mirrored = network.rows(np.ascontiguousarray(pixels[:, :, ::-1]))
    scaled = [network.rows(resized(pixels, 32 * round(scale * SIDE / 32))) for scale in (0.8, 1, 1.25)]
    wanted = {"one": plain, "mirror": (plain + mirrored) / 2, "scales": sum(scaled) / 3}
    for views, rows in wanted.items():
        found = PictureFeatures.open([folder], Views(SIDE, views=views)).transform(images).toarray()  # type: ignore[arg-type]
        np.testing.assert_allclose(found, rows, rtol=1e-4, atol=1e-6)


def test_other_colours(folder: Path) -> None:
    images = pictures(2)
    usual, own = (
        PictureFeatures.open([folder], Views(SIDE, mean=mean)).transform(images).toarray()
        for mean in (None, (0.485, 0.456, 0.406))
    )
    np.testing.assert_array_equal(usual, own)
    other = PictureFeatures.open([folder], Views(SIDE, mean=(0.1, 0.1, 0.1))).transform(images).toarray()
    assert np.abs(other - usual).max() > 1e-3


def test_two_networks_side_by_side(folder: Path, tmp_path: Path) -> None:
    save_vit(tmp_path / "vit")
    images = pictures(3)
    both = PictureFeatures.open([folder, tmp_path / "vit"], Views(SIDE))
    alone = [PictureFeatures.open([each], Views(SIDE)) for each in (folder, tmp_path / "vit")]
    rows = [each.transform(images).toarray() for each in alone]
    wanted = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in rows]
    np.testing.assert_allclose(both.transform(images).toarray(), np.hstack(wanted), rtol=1e-5, atol=1e-7)
    assert both.feature_count == 16
    assert len({both.digest, alone[0].digest, alone[1].digest}) == 3


def test_a_model_finds_its_network_again(folder: Path, tmp_path: Path) -> None:
    images = pictures(3)
    made = PictureFeatures.open([folder], Views(SIDE, "crop", "mirror", (0.5, 0.5, 0.5)))
    again = PictureFeatures.from_facts(json.loads(json.dumps(made.facts())))
    assert again.views == made.views and again.digest == made.digest
    np.testing.assert_array_equal(again.transform(images).toarray(), made.transform(images).toarray())
    moved = folder.rename(tmp_path / "moved")
    lost = PictureFeatures.from_facts(made.facts())
    with pytest.raises(ConfigError, match=r"is not in .*net: give its folder"):
        lost.transform(images)
    save_resnet(tmp_path / "other", seed=1)
    with pytest.raises(ConfigError, match="is not the pretrained network of training"):
        lost.look_in(tmp_path / "other")  # also if all features are cached
    lost.look_in(moved)
    np.testing.assert_array_equal(lost.transform(images).toarray(), made.transform(images).toarray())


@pytest.mark.parametrize(
    "change",
    [{"version": 0}, {"networks": []}, {"size": "32"}, {"fit": "x"}, {"views": "x"}, {"mean": [1]}, {"networks": [{}]}],
)
def test_damaged_facts(folder: Path, change: dict[str, object]) -> None:
    facts = PictureFeatures.open([folder], Views(SIDE)).facts()
    with pytest.raises((ValueError, KeyError, TypeError)):
        PictureFeatures.from_facts({**facts, **change})


def test_sizes_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    save_vit(tmp_path / "vit")
    for views in (Views(48), Views(SIDE, views="scales")):
        with pytest.raises(ConfigError, match=r"vit takes pictures of 32 × 32 only"):
            PictureFeatures.open([tmp_path / "vit"], views)
    with pytest.raises(DataError, match="gets pictures of 48 × 48, not 32"):
        PictureFeatures.open([folder], Views(48)).transform(pictures(2))


def test_the_same_network_twice_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the same network twice"):
        PictureFeatures.open([folder, folder], Views(SIDE))
