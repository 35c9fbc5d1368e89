"""Package description of bert_tf2; `pip install -e .[test]` from a checkout."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent

setuptools.setup(
    name="bert_tf2",
    version=re.search(r'^__version__ = "(.+)"$', (ROOT / "bert_tf2/__init__.py").read_text(), re.MULTILINE)[1],
    description="BERT for TensorFlow 2 and Keras 3: google-research/bert's scripts, flags, files and numbers",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=setuptools.find_packages(include=["bert_tf2", "bert_tf2.*"]),
    package_data={"bert_tf2.demo": ["*.txt", "*.json"]},
    entry_points={"console_scripts": ["bert_tf2 = bert_tf2.commands:main"]},
    python_requires=">=3.10,<3.14",
    install_requires=[
        "tensorflow>=2.20,<2.22",
        "keras>=3.12,<4",
        # No wheel for Windows: there, everything works but build_vocab.py and exports that take text.
        "tensorflow-text>=2.20,<2.22; platform_system != 'Windows'",
        "numpy",
        "absl-py",
        "tensorboard",  # tf.summary writes nothing without it, and TensorFlow no longer brings it
        "tqdm",  # progress on a terminal
        "scikit-learn",  # the measures of classification and regression tasks
        "scipy",
        "h5py",  # Keras' files
        "filelock>=4",  # one training at a time in an output folder
        "google-crc32c",  # the checksums of TensorFlow's checkpoints
        "ml-dtypes",  # bfloat16 for numpy; TensorFlow brings it too
    ],
    extras_require={
        "test": ["pytest", "pytest-xdist", "ruff", "grpcio", "tensorflow-serving-api", "pyyaml", "safetensors"],
        # What tests/test_interop.py compares with; the CPU build of torch is enough.
        "interop": ["torch==2.13.0", "transformers"],
        # What benchmarks/serving.py compares with.
        "bench": ["torch==2.13.0", "transformers", "onnx", "onnxscript", "onnxruntime"],
    },
)
