"""The compiler: an ONNX graph or a decoder checkpoint in, one bundle per machine out."""

__version__ = "0.1.0"
