"""A predictor as one graph, base model and heads together: a module, a program of torch.export, or an ONNX file."""

from splitpoint.export.comparison import Comparison
from splitpoint.export.graph import Graph, module
from splitpoint.export.onnx_file import onnx
from splitpoint.export.program import program

__all__ = ["Comparison", "Graph", "module", "onnx", "program"]
