"""Every data set that can be had, in one table: what it is, where it comes from, what it must be and how it is read.

The checksum of a source belongs to the file as it is downloaded. The UCI archives have none here: nobody publishes one,
and an archive that is packed anew would change it. What is verified instead is the content, the converted arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from splitpoint.datasets import arrays, luma
from splitpoint.datasets import image_readers as read
from splitpoint.datasets import modal_readers as modal
from splitpoint.datasets import scene_readers as scenes
from splitpoint.datasets.entry import Entry, Form, ImageEntry, ModalEntry, SceneEntry, Source, TableEntry
from splitpoint.errors import SettingsError

DataSet: TypeAlias = TableEntry | ImageEntry | SceneEntry | ModalEntry

_UCI = "https://archive.ics.uci.edu/static/public"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"
_HENDRYCKS = "https://people.eecs.berkeley.edu/~hendrycks"
_SVHN_FILES = {
    "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
}


def _like_mnist(
    name: str, title: str, *, raw: str, address: str, files: Sequence[str], arrays: Mapping[str, str], **more: Any
) -> ImageEntry:
    """A set in the form of MNIST: four idx files at `address`, which lie unpacked in the folder NAME or `raw`.

    `files` and `arrays` are checksums in the order training images and labels, test images and labels.
    """
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return ImageEntry(
        name=name,
        title=title,
        size="70,000 x 28 x 28",
        classes=10,
        packed="idx",
        sources=tuple(Source(f"{address}/{stem}-ubyte.gz", md5) for stem, md5 in zip(stems, files, strict=True)),
        forms=(
            Form(f"{name}.npz", read.grey_npz, arrays),
            *(Form(folder, read.idx_folder, arrays) for folder in (name, raw)),
        ),
        **more,
    )


# fmt: off
SETS: dict[str, DataSet] = {entry.name: entry for entry in (
    TableEntry(name="boston", title="boston", rows=506, features=13, targets=("price",),
        sources=(Source("https://lib.stat.cmu.edu/datasets/boston"),),
        licence="none stated", reader=arrays.statlib_boston,
        checksums={"X": "sha256:58d9abef45a8e00c844d74ff0027c96d21a8a237d7ba7e4c0c30b11dcdafde10",
                   "y": "sha256:a7a4a2bed7266f5e88acd2854ae97af5206bed564ab217810535d4cd14d76edb",
                   "rows": "sha256:fd87e47646e384f7ff6c76ebe85c988b5690f797e804708235d3fecdfcb9ceb9"}),
    TableEntry(name="concrete", title="concrete", rows=1030, features=8, targets=("strength",),
        sources=(Source(f"{_UCI}/165/concrete+compressive+strength.zip"),),
        licence="CC BY 4.0", reader=arrays.xls, member="Concrete_Data.xls", decimals=(1, 2),
        checksums={"X": "sha256:c4f7f8fda5b3d88e68498336fd4c640b7c7215e13e58be2549e1d4251d005f26",
                   "y": "sha256:6a51bf86903430946bc63cad7bd665ee89132a2bb413172e60b7afe14800f013",
                   "rows": "sha256:8c783310fd89ef19bc357ea58acd280e5dca82f1afb70134a46347bc9fa6eb60"}),
    TableEntry(name="energy", title="energy", rows=768, features=8, targets=("heating", "cooling"),
        sources=(Source(f"{_UCI}/242/energy+efficiency.zip"),),
        licence="CC BY 4.0", reader=arrays.xlsx, member="ENB2012_data.xlsx", decimals=(None, 2),
        checksums={"X": "sha256:394f967b71ba5a86a0eec3d218a9bdba1d035895c4d9f2223dfd8d64f93258fe",
                   "y": "sha256:79a552da5262251cc9509e6c184f84db3cf9a62a1a41e993b0023f2ba9a1fe22",
                   "y_all": "sha256:5ff702c82dcc7e65533cb72c91738ada1c9eb41dc40b9d8a6691ee3a107829b5",
                   "rows": "sha256:1bd8aa27f82891d256bf303f545cdefb426fd0c571d220001b571204cd41b3db"}),
    TableEntry(name="kin8nm", title="kin8nm", rows=8192, features=8, targets=("distance",),
        sources=(Source("https://www.openml.org/data/download/3626/dataset_2175_kin8nm.arff"),),
        licence="none stated", reader=arrays.arff,
        checksums={"X": "sha256:40fe658abf608fb41492e445d8e89d3a5f5daeee62e29ebdac02f329f1cf6dff",
                   "y": "sha256:a16dfbf651526e3e7a7543c7ba12c93e50ca2baecd284e62671fad99b9ea1fb4",
                   "rows": "sha256:20d07850db8d874ed774aa79ff721947fd912b77b089c88322a2aeeb72801fd7"}),
    TableEntry(name="naval", title="naval", rows=11934, features=16, targets=("compressor", "turbine"),
        sources=(Source(f"{_UCI}/316/condition+based+maintenance+of+naval+propulsion+plants.zip"),),
        licence="CC BY 4.0", reader=arrays.separated(), member="data.txt",
        checksums={"X": "sha256:7206828144245475bf4d7620d12cea8378b4212866a7c9e94ab49a02a0402b8b",
                   "y": "sha256:325f8fec7abe20a5df9a4767ae05c26576320c1df2f9d24b176e7a2941ed6e47",
                   "y_all": "sha256:16fe57e604df3192d8b133cfa2a606653c9f05657b2076bd5152dda98cc2c7f6",
                   "rows": "sha256:813b92f80bebbd8dac9f03e7169883cad9ba0784b15488143ecd3018742f0c6e"}),
    TableEntry(name="power", title="power", rows=9568, features=4, targets=("output",),
        sources=(Source(f"{_UCI}/294/combined+cycle+power+plant.zip"),),
        licence="CC BY 4.0", reader=arrays.xlsx, member="Folds5x2_pp.xlsx",
        checksums={"X": "sha256:738126c94648654d3ac7514716695c19957f4bb8e8ecdff7b8a2c61ffb858bb7",
                   "y": "sha256:b84c1488b08e6ec560bbabfc57013ca515259eaa0abc7dafec26b31a2c484424",
                   "rows": "sha256:de02023f4e7f10d6743e3b661e4b02f0459e8d190e83ea3ed50e0e4fb414da4b"}),
    TableEntry(name="protein", title="protein", rows=45730, features=9, targets=("rmsd",),
        sources=(Source(f"{_UCI}/265/physicochemical+properties+of+protein+tertiary+structure.zip"),),
        licence="CC BY 4.0", reader=arrays.separated(",", header=1), member="CASP.csv", targets_first=True,
        checksums={"X": "sha256:b191e61db326c95c38cbfdc8f963abd6a78018de5b3dcac60f2f9112859abd06",
                   "y": "sha256:3c467e6bbcc4f151c7f8536c1296b4513035b83e7bdc3464e57b7dc4b0264d95",
                   "rows": "sha256:af0581c414e994d6cf8d18aa192fed5cc1bc9ab6850da8b7cc5be665bd711b19"}),
    TableEntry(name="wine", title="wine", rows=1599, features=11, targets=("quality",),
        sources=(Source(f"{_UCI}/186/wine+quality.zip"),),
        licence="CC BY 4.0", reader=arrays.separated(";", header=1), member="winequality-red.csv",
        checksums={"X": "sha256:9f40e7499030fb1aebbaed39a614fdac96d1c997b6abad2502f6386d1734ed9b",
                   "y": "sha256:857552cf21124c681133662195ef3c2115025105d510d53a2929ca0c4907f097",
                   "rows": "sha256:38163c20a38e90b64b2b1f53db0d42f6eb9d17544e445aafface00ade255a266"}),
    TableEntry(name="yacht", title="yacht", rows=308, features=6, targets=("resistance",),
        sources=(Source(f"{_UCI}/243/yacht+hydrodynamics.zip"),),
        licence="CC BY 4.0", reader=arrays.separated(), member="yacht_hydrodynamics.data",
        checksums={"X": "sha256:cfee469bd75844078732e2197f89767cf7c3feb11848e40b7085ea648898da72",
                   "y": "sha256:830b8fefb460a74aeeb6d46aa8869501ddcd9d97cd12d64b05461b95fc4793c2",
                   "rows": "sha256:1bd3364bf0c3ed03dc3544ef9326d22cfec94359ded5920effe8daea5a17b0d0"}),
    _like_mnist("mnist", "MNIST", raw="MNIST/raw", licence="none stated", mirrored=False,
        ood=("fashion_mnist", "notmnist"), address="https://ossci-datasets.s3.amazonaws.com/mnist",
        files=("md5:f68b3c2dcbeaaa9fbdd348bbdeb94873", "md5:d53e105ee54ea40749a09fcbcd1e9432",
               "md5:9fb629c4189551a2d022fa330f9573f3", "md5:ec29112dd5afa0611ce80d1b7f02629c"),
        arrays={"x_train": "sha256:741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "y_train": "sha256:1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                "x_test": "sha256:6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "y_test": "sha256:ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"}),
    _like_mnist("fashion_mnist", "Fashion-MNIST", raw="FashionMNIST/raw", licence="MIT", ood=("mnist", "notmnist"),
        address="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        files=("md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d", "md5:25c81989df183df01b3e8a0aad5dffbe",
               "md5:bef4ecab320f06d8554ea6380940ec79", "md5:bb300cfdad3c16e7a12a480ee83cd310"),
        arrays={"x_train": "sha256:2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "y_train": "sha256:657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "x_test": "sha256:c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "y_test": "sha256:3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9"}),
    ImageEntry(name="cifar10", title="CIFAR-10", size="60,000 x 32 x 32 x 3", classes=10,
        licence="none stated", packed="tar", ood=("svhn", "tiny_imagenet"),
        sources=(Source(f"{_CIFAR}/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
        forms=(
            Form(read.CIFAR10_BINARY, read.cifar10_records, {
                "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
            }),
            Form("cifar-10-batches-py", read.cifar10_batches, {
                "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
                "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
                "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "md5:40351d587109b95175f43aff81a1287e",
            }),
        )),
    ImageEntry(name="cifar100", title="CIFAR-100", size="60,000 x 32 x 32 x 3", classes=100,
        licence="none stated", packed="tar", ood=("svhn", "tiny_imagenet"),
        sources=(Source(f"{_CIFAR}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),),
        forms=(
            Form(read.CIFAR100_BINARY, read.cifar100_records, {
                "train.bin": "size:153700000",
                "test.bin": "size:30740000",
            }),
            Form("cifar-100-python", read.cifar100_batches, {
                "train": "md5:16019d7e3df5f24257cddd939b257f8d",
                "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
            }),
        )),
    ImageEntry(name="svhn", title="SVHN", size="99,289 x 32 x 32 x 3", classes=10,
        licence="non-commercial use", packed="plain", mirrored=False,
        sources=tuple(Source(f"{_SVHN}/{file}", checksum) for file, checksum in _SVHN_FILES.items()),
        forms=(Form("svhn", read.svhn_mat, _SVHN_FILES),)),
    ImageEntry(name="notmnist", title="notMNIST", size="18,726 x 28 x 28", classes=10,
        licence="none stated", packed="folder", trainable=False, mirrored=False,
        sources=(Source("https://zenodo.org/record/8274268/files/notMNIST_small.zip",
                        "md5:3de91fb69221d9c2d5c57387101ebc6c"),),
        forms=(
            Form("notMNIST_small", read.letter_folders, {"[A-J]/*.png": "files:18724-18726"}),
            Form("notmnist.npz", read.grey_npz, {
                "x_test": "sha256:6bda48464effe4169d9cd068967cd81a717ae2f925ddb55fd71025e23022ee9a",
                "y_test": "sha256:cbf49d96931f5bf9ec86d14ed2f729c2870d4f9b406729e43c68d3748a345369",
            }, "10,000 x 28 x 28"),
        )),
    ImageEntry(name="tiny_imagenet", title="Tiny ImageNet", size="110,000 x 64 x 64 x 3", classes=200,
        licence="none stated", packed="folder",
        sources=(Source("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de"),),
        forms=(
            Form("tiny-imagenet-200", read.tiny_folder, {
                "wnids.txt": "files:1",
                "train/*/images/*.JPEG": "files:100000",
                "val/val_annotations.txt": "files:1",
                "val/images/*.JPEG": "files:10000",
            }),
            Form("tiny_imagenet_val_32.npz", read.tiny_npz, {
                "x": "sha256:f488ad442fb8d9b2fbe9a3b8a90dc53b4dc69a8aea18573caf33ef6bcf1b1191",
                "y": "sha256:a6d0aa8d4df540f2af8c5506c471ed46dafa4e874e00f46cc8000022336ccfd4",
            }, "10,000 x 32 x 32 x 3"),
        )),
    ImageEntry(name="imagenet", title="ImageNet", size="1,331,167 images", classes=1000, sources=(),
        licence="by agreement, non-commercial", packed="folder", ood=("imagenet_o",), adversarial="imagenet_a",
        by_hand="accept its licence at image-net.org and put its images into imagenet/train/WNID and imagenet/val/WNID "
        "below a folder of SPLITPOINT_DATA, one folder for each class",
        forms=(Form("imagenet", read.imagenet, {"train/n*/*.JPEG": "files:1281167", "val/n*/*.JPEG": "files:50000"}),)),
    ImageEntry(name="imagenet_a", title="ImageNet-A", size="7,500 images", classes=1000,
        licence="MIT", packed="folder", trainable=False,
        sources=(Source(f"{_HENDRYCKS}/imagenet-a.tar", "md5:c3e55429088dc681f30d81f4726b6595"),),
        forms=(Form("imagenet-a", read.imagenet_a, {"n*/*.jpg": "files:7500"}),)),
    ImageEntry(name="imagenet_o", title="ImageNet-O", size="2,000 images", classes=200,
        licence="MIT", packed="folder", trainable=False,
        sources=(Source(f"{_HENDRYCKS}/imagenet-o.tar", "md5:86bd7a50c1c4074fb18fc5f219d6d50b"),),
        forms=(Form("imagenet-o", read.imagenet_o, {"n*/*.JPEG": "files:2000"}),)),
    SceneEntry(name="nyu_depth", title="NYU Depth V2", size="27,000+ x 128 x 160", depth=True,
        sources=(), licence="none stated", ood=("apolloscape",),
        by_hand="put depth_train.h5 and depth_test.h5, which neurips2020/download_data.sh of "
        "github.com/aamini/evidential-deep-learning gets, into nyu_depth below a folder of SPLITPOINT_DATA, or "
        "nyu_depth_v2_labeled.mat and splits.mat of cs.nyu.edu/~silberman/datasets/nyu_depth_v2.html into nyu_depth_v2",
        forms=(
            Form("nyu_depth", scenes.authors_h5, {"depth_train.h5": "files:1", "depth_test.h5": "files:1"}),
            Form("nyu_depth_v2", scenes.nyu_mat, {"nyu_depth_v2_labeled.mat": "files:1", "splits.mat": "files:1"},
                "1,449 x 480 x 640 x 3"),
            Form("nyu_64x80.npz", scenes.nyu_npz, {
                "rgb": "sha256:71ff2ccdefe82fcf714d065155bc154d43de352c1f10fe6efbf7a697b6ad2690",
                "depth": "sha256:a60521d3adb82a3469ef49d552731a4dfc405e19d27c64da5ec06e1e4582dcd9",
                "depth_scale_m": "sha256:d7ad8341478ae86384efeb1649990efa8732a829670da46f5917e2687cac39b5",
                "train_idx": "sha256:8701953a28e42353ebafecd3938ece7e377bb17ad1bc0768e3e345f9f8c89ab0",
                "test_idx": "sha256:cc9575ffd1e1705986a3e3367741edd150c36b5e7c8dead561550c3e0c4553f0",
            }, "1,449 x 64 x 80 x 3"),
        )),
    SceneEntry(name="apolloscape", title="ApolloScape", size="1,000 x 128 x 160 x 3", trainable=False,
        sources=(), licence="terms of its site",
        by_hand="put apolloscape_test.h5, which neurips2020/download_data.sh of "
        "github.com/aamini/evidential-deep-learning gets, into a folder of SPLITPOINT_DATA, or JPEG images of "
        "apolloscape.auto/stereo.html, those of the left camera alone, into apolloscape below one",
        forms=(
            Form("apolloscape_test.h5", scenes.images_h5, {"image": ""}),
            Form("apolloscape", scenes.photographs, {"**/*.jpg": ""}, "any number of images"),
        )),
    SceneEntry(name="camvid", title="CamVid", size="701 x 720 x 960 x 3", trainable=False,
        sources=(), licence="none stated",
        by_hand="put the 701 images of mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid into 701_StillsRaw_full "
        "below a folder of SPLITPOINT_DATA",
        forms=(
            Form("701_StillsRaw_full", scenes.photographs, {"*.png": "files:701"}),
            Form("camvid_64x80.npz", scenes.named_npz, {
                "rgb": "sha256:8b56f9ac56c0490494d1ff0961ab4691108b3fc78f34100688f2706c43dc393c",
                "name": "sha256:0c1508917f7a8329a2e140c5778fd5db9cb0a14b07beb32313ccffbe5836cc18",
            }, "701 x 64 x 80 x 3"),
        )),
    SceneEntry(name="kitti_road", title="KITTI road", size="579 images", trainable=False,
        sources=(), licence="CC BY-NC-SA 3.0",
        by_hand="unpack data_road.zip of www.cvlibs.net/datasets/kitti/eval_road.php below a folder of SPLITPOINT_DATA",
        forms=(
            Form("data_road", scenes.photographs, {
                "training/image_2/*.png": "files:289",
                "testing/image_2/*.png": "files:290",
            }),
            Form("kitti_road_64x80.npz", scenes.named_npz, {
                "rgb": "sha256:0e8c04f8f5f33ce17fc18eb033b752d9547d661b52058ae62056b3fa6f2307d9",
                "name": "sha256:61ad891c11e59df55a641159db46a48d937e9ca25dbac199170bc7724ab81b41",
            }, "579 x 64 x 80 x 3"),
        )),
    ModalEntry(name="three_modal", title="Three modalities", size="6,000 x 3 modalities", classes=42,
        modalities=("image", "audio", "text"), place="three_modal_50.npz", reader=modal.three_modal,
        sources=(), licence="CC BY-NC 3.0 (audio), CC BY 3.0 (text), none stated (images)",
        by_hand="put three_modal_50.npz, which the page of data sets describes, into a folder of SPLITPOINT_DATA",
        checksums={
            "image": "sha256:6b36abbc11fa36d2240048fce2a488f85271bca10a7ee304bcdbef4907189882",
            "audio": "sha256:72da4ceb0c32c3a8e9863a5c26ebf865bf76b9d6a47bca8e5741b98588256a29",
            "text": "sha256:2705900cc9922f84f3229adee31609f04a7e5edff1303f48c429733705e7636e",
            "y": "sha256:428c589a71d1fa67e1fd69a748f03822c9d0bece56c83f021750f477a9b4ec1d",
            "split": "sha256:fd19cfb67cbd1c9e3e75a767345946aca6e0ea3e87c9adaf805defdf31a2aa55",
            "clip": "sha256:96232497e17f5004f09e404003d29ef1d380489bbf027628dc310b35ac527311",
            "image_names": "sha256:2098532eff6c3ca7642d89898c9cbd9e0ba1d8573f12f0cb54aba2bb3d9d4952",
            "audio_names": "sha256:0c736e91d8cd16719c3299d7616a92f0be9ecfc6b07bb5511ea15656c51fce1f",
            "text_names": "sha256:37fc18b159f8d8d371026f6872094ffad11865ca3a7ca1964d7eb75affedbcd6",
        }),
    ModalEntry(name="luma", title="LUMA", size="29,059 x 3 modalities", classes=42,
        modalities=("image", "audio", "text"), place="luma", reader=luma.luma, sources=(), licence="CC BY-SA 4.0",
        by_hand="put audio and text_data.tsv of huggingface.co/datasets/bezirganyan/LUMA and split_indices of "
        "github.com/bezirganyan/LUMA into luma below a folder of SPLITPOINT_DATA, and get cifar10 and cifar100",
        checksums={"audio/datalist.csv": "files:1", "text_data.tsv": "files:1", "split_indices/*.txt": "files:6"}),
    ModalEntry(name="handwritten", title="HandWritten", size="2,000 x 6 views", classes=10,
        modalities=("pixels", "fourier", "profiles", "zernike", "karhunen_loeve", "morphology"),
        place="multiview/handwritten.npz", reader=modal.views, sources=(), licence="CC BY 4.0",
        by_hand="put the views of handwritten.mat, which github.com/jiajunsi/RCML has, as arrays view0 to view5 with y "
        "into multiview/handwritten.npz below a folder of SPLITPOINT_DATA",
        checksums={
            "y": "sha256:783ded2cd634604d77909249bf721cf46185a8401e95753ab3636fc8edcb816c",
            "view0": "sha256:1b6c55fcecb9515616620ed0b552e58861f55284e9ff2c1a1bbc6fe118e40f2e",
            "view1": "sha256:c87ae0d55c53bdbb7382b5369075f847b554e48c910e8fdcbb6d678ccdffb3dd",
            "view2": "sha256:dceb63be53b7bfe43200cdcb900ae0ded3e6ebd8709d098351368c30e7eea63a",
            "view3": "sha256:5c1277c9505e2f287650c11f8d6c8a0f14317ffb17d39b0573a3d65bb5907d21",
            "view4": "sha256:2516a255c8c5b07d5a344052beb7addbf003ea82e24febbbc90b174b30d19cb2",
            "view5": "sha256:2eb75ca9c05009447e315e7443d8cefd46391d83905a651fda7484372030f193",
        }),
    ModalEntry(name="pie", title="PIE", size="680 x 3 views", classes=68,
        modalities=("intensity", "lbp", "gabor"),
        place="multiview/pie.npz", reader=modal.views, sources=(), licence="none stated",
        by_hand="put the views of PIE_face_10.mat, which github.com/jiajunsi/RCML has, turned round, as arrays view0 "
        "to view2 with y into multiview/pie.npz below a folder of SPLITPOINT_DATA",
        checksums={
            "y": "sha256:9c311779a3fceb612729054a8177e9234ffba596003a6093f13884856eaf6be4",
            "view0": "sha256:c8e5101dcd6f83cc9a8fb8f3beb83b80378316bf9f214838f19684e2e23d62c7",
            "view1": "sha256:c0cc481691e38bc54ebe88cdf47ec77c200a58d554bbf34228462a2cf4cf9cb8",
            "view2": "sha256:6dd77def400cc285a27e131b35d653ba3a29b3a6a299ad39e8b2d79ff0d3db88",
        }),
)}
"""The sets by name. The tables are as the customary experiments use them (Hernandez-Lobato and Adams, 2015)."""
# fmt: on

_Kind = TypeVar("_Kind", bound=Entry)


class _OfKind(Mapping[str, _Kind]):
    """The sets of one kind, as `SETS` has them at the moment."""

    def __init__(self, kind: type[_Kind]) -> None:
        self._kind = kind

    def __getitem__(self, name: str) -> _Kind:
        return self._sets()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sets())

    def __len__(self) -> int:
        return len(self._sets())

    def _sets(self) -> dict[str, _Kind]:
        return {name: found for name, found in SETS.items() if isinstance(found, self._kind)}


TABLES: Mapping[str, TableEntry] = _OfKind(TableEntry)
IMAGE_SETS: Mapping[str, ImageEntry] = _OfKind(ImageEntry)
SCENES: Mapping[str, SceneEntry] = _OfKind(SceneEntry)
MODAL: Mapping[str, ModalEntry] = _OfKind(ModalEntry)
"""The tables, the sets of images, the sets of scenes and the sets with several modalities in `SETS`."""


def entry(name: str) -> DataSet:
    """The entry `name` of `SETS`; another name is a SettingsError."""
    if name not in SETS:
        raise SettingsError(f"Expected a data set among {', '.join(SETS)}, but got {name!r}.")
    return SETS[name]


def entries(names: Iterable[str]) -> dict[str, DataSet]:
    """Entries by name, all of them where no name is given."""
    return {name: entry(name) for name in names} or dict(SETS)
