"""The picture datasets of the catalog."""

from __future__ import annotations

from fedalc.data.catalog.entry import Download, Entry, ImageSet

_VOC = "http://host.robots.ox.ac.uk/pascal/VOC"
_COCO = "https://cocodataset.org/#download"
_FLAIR = "https://github.com/apple/ml-flair"
_PACKED_OR_NOT = "You can leave the archives packed (.tar, .tar.gz) or unpack them there."
_GET_FLAIR = (
    "Download it with the page's download_dataset.py. Put labels_and_metadata.json and the folder small_images, or the "
    "packed archives small_images-00.tar.gz to small_images-42.tar.gz, into <data folder>/flair/."
)


def _voc(year: int, archive: str, md5: str, split: str) -> Download:
    shown_by = f"VOCdevkit/VOC{year}/ImageSets/Main/{split}.txt"
    return Download(f"{_VOC}/voc{year}/{archive}", archive, md5=md5, unpacked=shown_by)


def _coco(path: str, md5: str, folder: str) -> Download:
    name = path.rpartition("/")[2]
    return Download(f"http://images.cocodataset.org/{path}", name, md5=md5, unpack=True, unpacked=folder)


_VOC2012 = _voc(2012, "VOCtrainval_11-May-2012.tar", "6cd6e144f989b92b3379bac3b3de84fd", "trainval")
_COCO_VAL = (
    _coco("annotations/annotations_trainval2017.zip", "f4bbac642086de4f52a3fdda2de5fa2c", "annotations"),
    _coco("zips/val2017.zip", "442b8da7639aecaf257c1dceb8ba8c80", "val2017"),
)

PICTURES: tuple[Entry, ...] = (
    Entry(
        name="mosaics",
        title="Mosaics: one to four of scikit-learn's handwritten digits in a picture of 32×32 pixels",
        statistics=None,
        page="",
        files=(),
        how_to_get="No download needed: fedalc generates it, always the same.",
        note="3,000 train and 1,000 test pictures, 10 labels; digits of a group (012, 345, 6789) often occur together.",
        users=40,
    ),
    Entry(
        name="voc2007",
        title="PASCAL VOC 2007: 20 classes of objects in photographs (Everingham et al., 2010)",
        statistics=None,
        page=f"{_VOC}/voc2007/",
        files=(),
        how_to_get=(
            "Put VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar, from the page, into <data folder>/voc2007/. "
            + _PACKED_OR_NOT
        ),
        note=(
            "Trained on trainval, tested on test, as in the paper. Validation data, if you set it, is a share of "
            "trainval (in the paper: 250 of 5,011)."
        ),
        downloads=(
            _voc(2007, "VOCtrainval_06-Nov-2007.tar", "c52e279531787c972589f7e41ab4ae64", "trainval"),
            _voc(2007, "VOCtest_06-Nov-2007.tar", "b6e924de25625d8de591ea690078ad9f", "test"),
        ),
        images=ImageSet("voc", "2007", 5011, 4952, 20, markers=("VOCdevkit/VOC2007", "VOC2007", "ImageSets")),
    ),
    Entry(
        name="voc2012",
        title="PASCAL VOC 2012: 20 classes of objects in photographs (Everingham et al., 2015)",
        statistics=None,
        page=f"{_VOC}/voc2012/",
        files=(),
        how_to_get=("Put VOCtrainval_11-May-2012.tar, from the page, into <data folder>/voc2012/. " + _PACKED_OR_NOT),
        note=(
            "Trained on train, tested on val: the labels of its test pictures were never published. The paper's split "
            "is voc2012-leaking."
        ),
        downloads=(_VOC2012,),
        images=ImageSet(
            "voc",
            "2012",
            5717,
            5823,
            20,
            labels_per_instance=1.54,
            markers=("VOCdevkit/VOC2012", "VOC2012", "ImageSets"),
        ),
    ),
    Entry(
        name="voc2012-leaking",
        title="PASCAL VOC 2012 as the paper splits it. LEAKING: every test picture is a training picture too",
        statistics=None,
        page=f"{_VOC}/voc2012/",
        files=(),
        how_to_get=("Put VOCtrainval_11-May-2012.tar, from the page, into <data folder>/voc2012/. " + _PACKED_OR_NOT),
        note=(
            "Trained on trainval, tested on val, which is part of it: results measure how well the model memorises "
            "pictures. Only for comparison with the paper (10,963 and 577 of these to train and validate); otherwise "
            "use voc2012."
        ),
        downloads=(_VOC2012,),
        images=ImageSet(
            "voc",
            "2012-leaking",
            11540,
            5823,
            20,
            labels_per_instance=1.53,
            markers=("VOCdevkit/VOC2012", "VOC2012", "ImageSets"),
        ),
        shared_folder="voc2012",
    ),
    Entry(
        name="coco",
        title="COCO 2017: 80 categories of objects in photographs (Lin et al., 2014)",
        statistics=None,
        page=_COCO,
        files=(),
        how_to_get=(
            "The page offers zip files: unpack train2017.zip, val2017.zip and annotations_trainval2017.zip into "
            "<data folder>/coco/, so that it has the folders train2017, val2017 and annotations. A tar archive of "
            "these works as well."
        ),
        note=(
            "Trained on train2017, tested on val2017. The paper uses other pictures: 73,873 and 8,208 to train and "
            "validate, 40,136 to test. It does not state the year; their number suggests the labelled pictures of 2014."
        ),
        downloads=(*_COCO_VAL, _coco("zips/train2017.zip", "cced6f7f71b7629ddf16f17bbcfab6b2", "train2017")),
        images=ImageSet("coco", "2017", 118287, 5000, 80, markers=("annotations/instances_train2017.json",)),
    ),
    Entry(
        name="coco-val2017",
        title="Only COCO val2017, divided by this project: four fifths to train, one fifth to test",
        statistics=None,
        page=_COCO,
        files=(),
        how_to_get=(
            "The page offers zip files: unpack val2017.zip and annotations_trainval2017.zip into <data folder>/coco/, "
            "so that it has the folders val2017 and annotations. A tar archive of these works as well."
        ),
        note=(
            "A substitute if you cannot get train2017: results are not comparable with published ones. A hash of a "
            "picture's number decides its part. 48 pictures have no label."
        ),
        downloads=_COCO_VAL,
        images=ImageSet(
            "coco",
            "val2017",
            4022,
            978,
            80,
            labels_per_instance=2.93,
            markers=("annotations/instances_val2017.json",),
        ),
        shared_folder="coco",
    ),
    Entry(
        name="flair",
        title="FLAIR: photographs of 51,414 Flickr users, 17 coarse labels (Song, Granqvist and Talwar, 2022)",
        statistics=None,
        page=_FLAIR,
        files=(),
        how_to_get=_GET_FLAIR,
        note="Published partition into train, validation and test, without common users. The paper uses flair-fine.",
        images=ImageSet("flair", "coarse", 345879, 43960, 17, 39239, markers=("labels_and_metadata.json",)),
        users=51414,
    ),
    Entry(
        name="flair-fine",
        title="FLAIR with its 1,628 fine-grained labels",
        statistics=None,
        page=_FLAIR,
        files=(),
        how_to_get=_GET_FLAIR,
        note=(
            "The paper's FLAIR, judging by its number of labels. Same files as flair, with the published partition "
            "into train, validation and test, without common users."
        ),
        images=ImageSet("flair", "fine", 345879, 43960, 1628, 39239, markers=("labels_and_metadata.json",)),
        users=51414,
        shared_folder="flair",
    ),
)
