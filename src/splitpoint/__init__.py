"""Post-hoc split-point uncertainty for trained PyTorch models."""

from splitpoint.regression import SplitPointRegressor
