"""Names of classes: those of LUMA in the order of its labels, and those of CIFAR, whose images it takes."""

# fmt: off
CLASSES = (
    "man", "boy", "house", "woman", "girl", "table", "road", "horse", "dog", "ship", "bird", "mountain", "bed",
    "train", "bridge", "fish", "cloud", "chair", "cat", "baby", "castle", "forest", "television", "bear", "camel",
    "sea", "fox", "plain", "bus", "snake", "lamp", "clock", "lion", "tank", "palm", "rabbit", "pine", "cattle",
    "oak", "mouse", "frog", "ray", "bicycle", "truck", "elephant", "roses", "wolf", "telephone", "bee", "whale",
)
"""The last 8 are out of distribution."""

CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
CIFAR100_NAMES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
"""In the order of their labels; the finer ones of CIFAR-100."""
# fmt: on

RENAMED = {
    "aquarium_fish": "fish",
    "oak_tree": "oak",
    "palm_tree": "palm",
    "pickup_truck": "truck",
    "pine_tree": "pine",
    "rose": "roses",
}
"""Names of CIFAR that LUMA has otherwise."""
