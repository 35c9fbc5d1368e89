"""Times the exported encoder in each runtime that reads it, on the same weights, in the same run.

    python benchmarks/serving.py
    python benchmarks/serving.py --weights WEIGHTS_FOLDER --threads 4 --rounds 20

    float32, bfloat16     TensorFlow as TensorFlow Serving runs it: a SavedModel in a session that C++ executes
                          (tf.saved_model.load would add Python's overhead to each call)
    ONNX, ONNX int8       ONNX Runtime on the file of --format=onnx, without and with --quantize=int8
    OpenVINO, OpenVINO f32    OpenVINO on the SavedModel: in the precision that it chooses, and in float32

Every side uses --threads threads and returns sequence_output and pooled_output, whose largest difference from
TensorFlow's float32 is printed first. Without --weights the encoder has 6 layers of 384 and random weights. A side
whose packages are missing is left out.

Every case is a batch of B rows, padded to its longest row, and all sides get the same padded batch and mask. In the
case "mixed" the 32 rows have 16 to 128 tokens, evenly spread: ONNX Runtime computes all 32 x 128 positions, the
SavedModel's graph skips the padding. In the other cases there is no padding.

The sides alternate for --rounds rounds; a number is the p50 of a side's best round, in milliseconds. A "?" means that
other programs used the processor in every round, which slows the sides unequally: do not use such a number. Last, each
side starts in a separate process: bytes on disk, seconds to the first answer, and peak memory.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import machine

from bert_tf2.support import flags
from bert_tf2.support.settings import DEVICES, MODEL, TO_DO, Options, options, setting


@options
class BenchmarkOptions(Options):
    """Times the exported encoder in each runtime that reads it, on the same weights, in the same run."""

    weights: str | None = setting("Folder with config.json and model.safetensors of a BERT encoder.", None, group=MODEL)
    threads: int = setting("Threads for each side.", 2, group=DEVICES, low=1)
    rounds: int = setting("How often the sides take turns in each case.", 10, group=TO_DO, low=1)


Side = Callable[[list], Callable[[], list]]  # from a batch to the function to time, which returns OUTPUTS


NEEDED = {
    **dict.fromkeys(("ONNX", "ONNX int8"), ("onnx", "onnxruntime")),
    **dict.fromkeys(("OpenVINO", "OpenVINO f32"), ("openvino",)),
}
MINILM = {"vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
MINILM |= {"intermediate_size": 1536}
INPUTS, OUTPUTS = ("input_ids", "input_mask", "segment_ids"), ("sequence_output", "pooled_output")
SIZES = ((1, 16), (1, 64), (1, 128), (8, 64), (32, 16), (32, 128))
CASES = {f"{rows} x {length}": [length] * rows for rows, length in SIZES}
CASES["32 mixed"] = [16 + 112 * row // 31 for row in range(32)]
ROUND_SECONDS = 0.4


def make_batch(lengths: list[int], vocab_size: int) -> list:
    """input_ids, input_mask and segment_ids, int32, padded to the longest row."""
    import numpy as np

    random = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    ids = random.integers(1, vocab_size, mask.shape).astype(np.int32)
    return [ids * mask, mask, np.zeros_like(mask)]


def load_model(weights: str | None):
    """The encoder, and its configuration."""
    from bert_tf2 import modeling
    from bert_tf2.config import BertConfig
    from bert_tf2.weights import checkpoint, huggingface

    config = huggingface.HuggingFaceFolder(weights).config if weights else BertConfig(**MINILM)
    model = modeling.BertModel(config)
    if weights:
        checkpoint.initialize(model, weights)
    return model, config


def write_all(folder: str, weights: str | None) -> tuple[dict[str, str], int]:
    """Writes the models; returns the path for each side that can be timed, and the size of the vocabulary."""
    import tensorflow as tf

    from bert_tf2.exporting import folded_encoder, onnx_model, signatures
    from bert_tf2.exporting.options import ExportOptions

    model, config = load_model(weights)
    places = {"float32": f"{folder}/float32", "bfloat16": f"{folder}/bfloat16"}
    for precision, place in places.items():
        encoder = folded_encoder.Encoder(model, precision)
        serve = tf.function(lambda encoder=encoder, **x: dict(zip(OUTPUTS, encoder(**x), strict=True)), autograph=False)
        specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in INPUTS}
        tf.saved_model.save(encoder, place, signatures={"serving_default": serve.get_concrete_function(**specs)})
    missing = {name: [n for n in names if importlib.util.find_spec(n) is None] for name, names in NEEDED.items()}
    for name, packages in missing.items():
        if packages:
            print(f"Without {name}: pip install {' '.join(packages)}")
        else:
            places[name] = places["float32"] if "OpenVINO" in name else f"{folder}/{name.replace(' ', '_')}.onnx"
    if "ONNX" in places:
        options = ExportOptions(task="features", init_checkpoint=folder, export_dir=folder, format="onnx")
        exact = onnx_model.build(signatures.Setting(options, config, None, model=model, has_pooler=True))
        for name, written in (("ONNX", exact.SerializeToString()), ("ONNX int8", onnx_model.quantize(exact))):
            with open(places[name], "wb") as stream:
                stream.write(written)
    return places, config.vocab_size


def load(name: str, place: str, threads: int) -> Side:
    """Loads a model that `write_all` wrote into the runtime of a side."""
    if name in ("float32", "bfloat16"):
        return load_tensorflow(place, threads)
    return load_openvino(place, threads, name) if "OpenVINO" in name else load_onnx(place, threads)


def load_tensorflow(place: str, threads: int) -> Side:
    import tensorflow as tf

    numbers = {f"{kind}_op_parallelism_threads": threads for kind in ("intra", "inter")}
    session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(**numbers))
    with session.graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], place)
    ends = loaded.signature_def["serving_default"]
    outputs, inputs = [ends.outputs[name].name for name in OUTPUTS], [ends.inputs[name].name for name in INPUTS]
    call = session.make_callable(outputs, inputs)
    return lambda batch: lambda: call(*batch)


def load_openvino(place: str, threads: int, name: str) -> Side:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    settings |= {"INFERENCE_PRECISION_HINT": "f32"} if name.endswith("f32") else {}
    compiled = openvino.Core().compile_model(openvino.convert_model(place), "CPU", settings)
    request = compiled.create_infer_request()

    def prepare(batch: list) -> Callable[[], list]:
        feeds = dict(zip(INPUTS, batch, strict=True))

        def call() -> list:
            request.infer(feeds)
            return [request.get_tensor(name).data for name in OUTPUTS]

        return call

    return prepare


def load_onnx(place: str, threads: int) -> Side:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(place, options, providers=["CPUExecutionProvider"])
    return lambda batch: lambda: session.run(OUTPUTS, dict(zip(INPUTS, batch, strict=True)))


def start(name: str, place: str, threads: int, vocab_size: int, connection) -> None:
    """Computes one answer in a separate process; sends the peak of its memory in kB."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    load(name, place, threads)(make_batch([16], vocab_size))()
    # Not getrusage, which also counts the memory of the process that forked.
    with open("/proc/self/status", encoding="ascii") as lines:
        connection.send(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))


def print_starts(places: dict[str, str], vocab_size: int, threads: int) -> None:
    context = multiprocessing.get_context("spawn")
    print(f"{'':14}{'on disk, MB':>14}{'start, s':>12}{'memory, MB':>12}")
    for name, place in places.items():
        ours, theirs = context.Pipe()
        began = time.perf_counter()
        context.Process(target=start, args=(name, place, threads, vocab_size, theirs)).start()
        memory, seconds = ours.recv(), time.perf_counter() - began
        found = [os.path.join(at, file) for at, _, files in os.walk(place) for file in files] or [place]
        size = sum(map(os.path.getsize, found))
        print(f"{name:14}{size / 1e6:14.1f}{seconds:12.1f}{memory / 1e3:12.0f}", flush=True)


def largest_difference(sides: dict[str, Side], batch: list) -> str:
    """The largest differences between each side's outputs and the first side's, without padding."""
    import numpy as np

    real = batch[1] > 0
    outputs = {name: [values[0][real], values[1]] for name, side in sides.items() for values in [side(batch)()]}
    pairs = {name: zip(outputs["float32"], other, strict=True) for name, other in outputs.items() if name != "float32"}
    return ", ".join(f"{name} {max(np.abs(a - b).max() for a, b in pair):.1e}" for name, pair in pairs.items())


def seconds_of_others() -> float:
    """The processor time of other programs on all cores; a constant if the system does not report it."""
    if not os.path.exists("/proc/stat"):
        return 0.0
    with open("/proc/stat", encoding="ascii") as lines:
        user, nice, system, _idle, _waiting, *rest = map(int, next(lines).split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:2])


def time_round(call: Callable[[], list]) -> tuple[bool, float]:
    """Returns whether other programs used more than a tenth of a core, and the p50 of a call in milliseconds."""
    time.sleep(0.05)  # let the other side's threads stop waiting for work
    call()
    times: list[float] = []
    others, began = seconds_of_others(), time.perf_counter()
    while sum(times) < ROUND_SECONDS or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    disturbed = seconds_of_others() - others > 0.1 * (time.perf_counter() - began)
    return disturbed, statistics.median(times) * 1000


def run_cases(sides: dict[str, Side], vocab_size: int, rounds: int) -> None:
    print("largest difference from float32:", largest_difference(sides, make_batch(CASES["32 mixed"], vocab_size)))
    print("p50, ms   " + "".join(f"{name:>14}" for name in sides))
    for case, lengths in CASES.items():
        batch, best = make_batch(lengths, vocab_size), dict.fromkeys(sides, (True, float("inf")))
        for _ in range(rounds):
            best = {name: min(best[name], time_round(side(batch))) for name, side in sides.items()}
        shown = [f"{value:13.2f}{'?' if disturbed else ' '}" for disturbed, value in best.values()]
        print(f"{case:10}" + "".join(shown), flush=True)


def main(options: BenchmarkOptions) -> None:
    logging.disable(logging.WARNING)
    flags.load_tensorflow()
    packages = ("tensorflow", *sorted({package for names in NEEDED.values() for package in names}))
    found = [name for name in packages if importlib.util.find_spec(name)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in found)
    print(f"{machine.describe()}\n{versions}; {options.threads} threads, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        places, vocab_size = write_all(folder, options.weights)
        sides = {name: load(name, place, options.threads) for name, place in places.items()}
        run_cases(sides, vocab_size, options.rounds)
        print_starts(places, vocab_size, options.threads)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)
