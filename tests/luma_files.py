"""A small LUMA in the true formats of its files, written into a folder: four classes, and the eight that are others."""

import csv
import wave

import numpy as np

from splitpoint.datasets.luma_names import CIFAR10_NAMES, CIFAR100_NAMES, CLASSES, RENAMED

LEARNED = ("horse", "fish", "oak", "man")
"""One class of CIFAR-10, and three of CIFAR-100, of which two have another name there."""

OTHERS = CLASSES[42:]
RATE = 22050


def wav(path, samples, rate=RATE, width=2, channels=1):
    """Samples (T,) or (T, channels) in [-1, 1] as PCM of `width` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.round(np.asarray(samples) * (2 ** (8 * width - 1) - 1)).astype("<i4").reshape(-1)
    data = (numbers + 128).astype(np.uint8) if width == 1 else numbers.view(np.uint8).reshape(-1, 4)[:, :width]
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", "not compressed"))
        file.writeframes(data.tobytes())
    return path


def tone(number):
    """A tenth of a second of a tone that has its own height."""
    return 0.5 * np.sin(2 * np.pi * (200 + 10 * number) * np.arange(RATE // 10) / RATE)


def cifar(folder, label_names, files, label_bytes, each, first):
    """Binary files with `each` images of every class, shuffled; returns (name, number), and pixels have the number."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(first)
    labels = random.permutation(np.repeat(np.arange(len(label_names)), each))
    numbers = first + np.arange(len(labels))
    pixels = random.integers(0, 256, (len(labels), 3, 32, 32), np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = numbers // 256, numbers % 256
    head = np.stack([labels // 5, labels][-label_bytes:], 1).astype(np.uint8)
    records = np.concatenate([head, pixels.reshape(len(labels), -1)], 1)
    for file, some in zip(files, np.array_split(records, len(files)), strict=True):
        (folder / f"{file}.bin").write_bytes(some.tobytes())
    names = [RENAMED.get(label_names[label], label_names[label]) for label in labels]
    return list(zip(names, numbers.tolist(), strict=True))


def small_luma(data, train=10, test=3, others=2):
    """The folders ``luma``, ``cifar-10-batches-bin`` and ``cifar-100-binary``.

    Returns the listed rows of each modality: for images the numbers in their pixels, for sounds and texts their own.
    """
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    ten, hundred = data / "cifar-10-batches-bin", data / "cifar-100-binary"
    frames = {
        "train": cifar(ten, CIFAR10_NAMES, batches, 1, train, 0)
        + cifar(hundred, CIFAR100_NAMES, ["train"], 2, train, 1000),
        "test": cifar(ten, CIFAR10_NAMES, ["test_batch"], 1, test, 5000)
        + cifar(hundred, CIFAR100_NAMES, ["test"], 2, test, 6000),
    }
    inside = {"train": CLASSES, "test": CLASSES[:42]}
    images = {part: [row for row in rows if row[0] in inside[part]] for part, rows in frames.items()}

    folder = data / "luma"
    (folder / "split_indices").mkdir(parents=True)
    names = [name for name in LEARNED for _ in range(train + test)] + [name for name in OTHERS for _ in range(others)]
    names = np.random.default_rng(1).permutation(names).tolist()
    with (folder / "text_data.tsv").open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(["text", "label"])
        table.writerows([[f'Text {place} says "{name}"\nand more.', name] for place, name in enumerate(names)])
    (folder / "audio").mkdir()
    with (folder / "audio" / "datalist.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["path", "label", "tts_label"])
        for place, name in enumerate(names):
            wav(folder / "audio" / f"cv_audio/{name}/{place}.wav", tone(place))
            table.writerow([f"cv_audio/{name}/{place}.wav", name, "said"])
    listed = {}
    places = {name: [place for place, each in enumerate(names) if each == name] for name in LEARNED}
    for modality in ("audio", "text"):
        listed[modality, "train"] = [place for name in LEARNED for place in places[name][:train]]
        listed[modality, "test"] = [place for name in LEARNED for place in places[name][train:]]
    for part in ("train", "test"):
        listed["image", part] = [place for place, (name, _) in enumerate(images[part]) if name in LEARNED]
    for (modality, part), rows in listed.items():
        form = "%f" if modality == "text" else "%d"
        np.savetxt(folder / "split_indices" / f"{modality}_{part}{'_clean' * (part == 'train')}.txt", rows, form)
    for part in ("train", "test"):
        listed["image", part] = [images[part][row][1] for row in listed["image", part]]
    return listed
