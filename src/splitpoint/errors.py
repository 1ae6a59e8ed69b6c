"""What can go wrong, as one small hierarchy: every message says what was expected, what came and what to do."""


class SplitPointError(Exception):
    """Root of every error this library raises on purpose."""


class SettingsError(SplitPointError, ValueError):
    """A setting is outside its range or contradicts another one."""


class ShapeError(SplitPointError, ValueError):
    """A tensor has a shape that does not fit the model's output."""


class DataError(SplitPointError, ValueError):
    """The data are empty, not finite, out of range or of a form that is not understood."""


class LayerError(SplitPointError, ValueError):
    """The layer that should supply the features does not exist, does not run or gives no usable tensor."""


class CacheError(SplitPointError, ValueError):
    """A feature cache on disk belongs to another model, layer or data set, or is damaged."""


class StorageError(SplitPointError, ValueError):
    """A saved file is damaged, of a newer format or made for another base model."""


class TrainingError(SplitPointError, ValueError):
    """A training diverged: a loss, a weight or what was fitted is no longer finite."""


class SplitPointWarning(UserWarning):
    """A fit went through, but a check of its own says that some of its figures may be wrong."""


class ExportError(SplitPointError, ValueError):
    """A predictor cannot become one graph, or the graph does not answer as the predictor does."""
