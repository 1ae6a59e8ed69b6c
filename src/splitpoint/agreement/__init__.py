"""Which of several modalities contradicts the others: `Agreement` and what it says."""

from splitpoint.agreement.method import Agreement
from splitpoint.agreement.prediction import AgreementPrediction
from splitpoint.agreement.predictor import AgreementPredictor

__all__ = ["Agreement", "AgreementPrediction", "AgreementPredictor"]
