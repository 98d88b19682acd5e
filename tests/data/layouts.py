"""Small picture datasets in exactly the published layouts, as files by name; loose or packed."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Files = dict[str, bytes]


def picture(
    colour: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (20, 12), kind: str = "JPEG", **more: Any
) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, kind, **more)
    return buffer.getvalue()


def from_pixels(pixels: np.ndarray, kind: str = "PNG", **more: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **more)
    return buffer.getvalue()


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    """Return a tar archive, compressed according to its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def annotation(stem: str, objects: Sequence[tuple[str, bool]]) -> bytes:
    """Return an annotation as the devkit writes it, with parts of a person, whose names are not labels."""
    inner = "".join(
        f"\t<object>\n\t\t<name>{name}</name>\n\t\t<pose>Left</pose>\n\t\t<truncated>0</truncated>\n"
        f"\t\t<difficult>{int(difficult)}</difficult>\n"
        "\t\t<bndbox>\n\t\t\t<xmin>1</xmin>\n\t\t\t<ymin>1</ymin>\n\t\t\t<xmax>9</xmax>\n\t\t\t<ymax>9</ymax>\n\t\t</bndbox>\n"
        + ("\t\t<part>\n\t\t\t<name>head</name>\n\t\t</part>\n" if name == "person" else "")
        + "\t</object>\n"
        for name, difficult in objects
    )
    return (
        f"<annotation>\n\t<folder>VOC</folder>\n\t<filename>{stem}.jpg</filename>\n"
        f"\t<source>\n\t\t<database>The VOC Database</database>\n\t</source>\n"
        f"\t<size>\n\t\t<width>20</width>\n\t\t<height>12</height>\n\t\t<depth>3</depth>\n\t</size>\n{inner}</annotation>\n"
    ).encode()


VOC_OBJECTS: dict[str, list[tuple[str, bool]]] = {
    "000001": [("dog", False), ("person", True), ("dog", False)],
    "000002": [("person", False), ("cat", False)],
    "000003": [("sofa", True)],
    "000004": [("tvmonitor", False), ("aeroplane", False)],
}


def voc(year: str = "2012", root: str = "VOCdevkit/") -> Files:
    """Return two pictures for train, one for val, one for test."""
    base = f"{root}VOC{year}/"
    lists = {"train": "000001\n000003\n", "val": "000002\n", "trainval": "000001\n000002\n000003\n", "test": "000004\n"}
    files = {f"{base}ImageSets/Main/{name}.txt": text.encode() for name, text in lists.items()}
    files[f"{base}ImageSets/Main/dog_train.txt"] = b"000001  1\n000003 -1\n"
    files[f"{base}ImageSets/Segmentation/train.txt"] = b"000009\n"
    for at, (stem, objects) in enumerate(VOC_OBJECTS.items()):
        files[f"{base}Annotations/{stem}.xml"] = annotation(stem, objects)
        files[f"{base}JPEGImages/{stem}.jpg"] = picture((60 * at, 10, 200))
    return files


def coco_json(pictures: Sequence[int], objects: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return annotations whose category numbers have a gap, like COCO's."""
    return {
        "info": {"year": 2017, "version": "1.0"},
        "licenses": [{"url": "http://example.org", "id": 1, "name": "any"}],
        "images": [
            {"license": 1, "file_name": f"{number:012d}.jpg", "height": 12, "width": 20, "id": number}
            for number in pictures
        ],
        "annotations": [
            {
                "segmentation": [[1.5, 2.25, 3.0]] if at % 2 else {"counts": [1, 2], "size": [12, 20]},
                "area": 12.5,
                "iscrowd": 1 - at % 2,
                "image_id": image,
                "bbox": [1.0, 2.5, 3.0, 4.0],
                "category_id": category,
                "id": at,
            }
            for at, (image, category) in enumerate(objects)
        ],
        "categories": [
            {"supercategory": "animal", "id": 17, "name": "cat"},
            {"supercategory": "person", "id": 1, "name": "person"},
            {"supercategory": "indoor", "id": 90, "name": "toothbrush"},
        ],
    }


def coco(sets: Mapping[str, tuple[Sequence[int], Sequence[tuple[int, int]]]]) -> Files:
    files: Files = {}
    for name, (pictures, objects) in sets.items():
        files[f"annotations/instances_{name}.json"] = json.dumps(coco_json(pictures, objects)).encode()
        files |= {f"{name}/{number:012d}.jpg": picture((number % 256, 0, 90)) for number in pictures}
    return files


FLAIR_RECORDS = [
    ("14913474848", "59769174@N00", "train", ["equipment", "material"], ["bag", "printed_page"]),
    ("22", "59769174@N00", "train", ["plant"], ["tree", "grass"]),
    ("33", "7@N01", "train", [], []),
    ("44", "8@N01", "val", ["plant"], ["tree"]),
    ("55", "9@N01", "test", ["structure"], ["bridge"]),
]


def flair(records: Any = None) -> tuple[bytes, Files]:
    """Return the label file and the pictures."""
    listed = [
        {"user_id": user, "image_id": image, "fine_grained_labels": fine, "labels": coarse, "partition": partition}
        for image, user, partition, coarse, fine in records or FLAIR_RECORDS
    ]
    pictures = {f"small_images/{record['image_id']}.jpg": picture() for record in listed}
    return json.dumps(listed, indent=4).encode(), pictures
