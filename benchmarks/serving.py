"""Times the exported encoder against ONNX Runtime, on the same weights, in the same run.

    python benchmarks/serving.py --weights WEIGHTS_FOLDER
    python benchmarks/serving.py --weights WEIGHTS_FOLDER --threads 4 --rounds 20

TensorFlow runs folded_encoder.Encoder as TensorFlow Serving does: a SavedModel, loaded into a session, which C++ then
executes (tf.saved_model.load would add Python overhead to each call). It uses --threads intra-op and --threads inter-op
threads. ONNX Runtime uses --threads threads and all its graph optimizations; its model is exported from transformers
with torch.onnx.export, and "fused" is that model after onnxruntime.transformers' optimizer. Both sides return
sequence_output and pooled_output; their largest difference is printed first.

Every case is a batch of B rows, padded to its longest row, and both sides get the same padded batch and mask. In the
case "mixed" the 32 rows have 16 to 128 tokens, evenly spread: ONNX Runtime computes all 32 x 128 positions, and the
TensorFlow graph skips the padding. In the other cases there is no padding. ONNX Runtime computes in float32 only;
TensorFlow's bfloat16 is compared with that.

The sides alternate for --rounds rounds; a number is the p50 of a side's best round. A "?" means that other programs
used the processor in every round, which slows the sides unequally: do not use such a number. "x" is the speedup over
the faster of the two ONNX models. Without the packages of OTHER_SIDE only TensorFlow is timed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import machine
from absl import flags as absl_flags

from bert_tf2.support import flags
from bert_tf2.support.settings import DEVICES, MODEL, TO_DO, Options, options, setting

FLAGS = absl_flags.FLAGS


@options
class BenchmarkOptions(Options):
    """Times the exported encoder against ONNX Runtime, on the same weights, in the same run."""

    weights: str = setting("Folder with config.json and model.safetensors of a BERT encoder.", group=MODEL)
    threads: int = setting("Threads for each side.", 2, group=DEVICES, low=1)
    rounds: int = setting("How often the sides take turns in each case.", 10, group=TO_DO, low=1)


Side = Callable[[list], Callable[[], list]]  # from a batch to the function to time, which returns OUTPUTS


OTHER_SIDE = ("onnxruntime", "onnx", "torch", "transformers")
INPUTS, OUTPUTS = ("input_ids", "input_mask", "segment_ids"), ("sequence_output", "pooled_output")
CASES = {f"{rows} x {length}": [length] * rows for rows in (1, 32) for length in (16, 64, 128)}
CASES["32 mixed"] = [16 + 112 * row // 31 for row in range(32)]
ROUND_SECONDS = 0.4


def make_batch(lengths: list[int], vocab_size: int) -> list:
    """input_ids, input_mask and segment_ids, int32, padded to the longest row."""
    import numpy as np

    random = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    ids = random.integers(1, vocab_size, mask.shape).astype(np.int32)
    return [ids * mask, mask, np.zeros_like(mask)]


def make_tensorflow(folder: str, precision: str) -> Side:
    import tensorflow as tf

    from bert_tf2 import modeling
    from bert_tf2.export import folded_encoder
    from bert_tf2.weights import checkpoint, huggingface

    model = modeling.BertModel(huggingface.HuggingFaceFolder(FLAGS.weights).config)
    checkpoint.initialize(model, FLAGS.weights)
    encoder = folded_encoder.Encoder(model, precision)
    encoder.serve = tf.function(lambda **inputs: dict(zip(OUTPUTS, encoder(**inputs), strict=True)), autograph=False)
    specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in INPUTS}
    signatures = {"serving_default": encoder.serve.get_concrete_function(**specs)}
    tf.saved_model.save(encoder, folder, signatures=signatures)
    threads = {f"{kind}_op_parallelism_threads": FLAGS.threads for kind in ("intra", "inter")}
    session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(**threads))
    with session.graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], folder)
    ends = loaded.signature_def["serving_default"]
    outputs, inputs = [ends.outputs[name].name for name in OUTPUTS], [ends.inputs[name].name for name in INPUTS]
    call = session.make_callable(outputs, inputs)
    return lambda batch: lambda: call(*batch)


def export_onnx(plain: str, fused: str) -> None:
    import torch
    import transformers
    from onnxruntime.transformers import optimizer

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = transformers.BertModel.from_pretrained(FLAGS.weights, attn_implementation="eager").eval()

        def forward(self, input_ids, input_mask, segment_ids):
            output = self.bert(input_ids, attention_mask=input_mask, token_type_ids=segment_ids)
            return output.last_hidden_state, output.pooler_output

    model = Both()
    example = tuple(torch.from_numpy(values).long() for values in make_batch([16, 10], 100))
    axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, OUTPUTS[0])} | {OUTPUTS[1]: {0: "batch"}}
    names = {"input_names": INPUTS, "output_names": OUTPUTS, "dynamic_axes": axes}
    torch.onnx.export(model, example, plain, dynamo=False, opset_version=17, **names)
    sizes = {"num_heads": model.bert.config.num_attention_heads, "hidden_size": model.bert.config.hidden_size}
    optimizer.optimize_model(plain, model_type="bert", opt_level=0, **sizes).save_model_to_file(fused)


def load_onnx(path: str) -> Side:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = FLAGS.threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def prepare(batch: list) -> Callable[[], list]:
        feeds = {name: values.astype("int64") for name, values in zip(INPUTS, batch, strict=True)}
        return lambda: session.run(OUTPUTS, feeds)

    return prepare


def make_onnx(folder: str) -> dict[str, Side]:
    """The two ONNX models; if a package is missing, prints a line of advice and returns none."""
    if missing := [name for name in OTHER_SIDE if importlib.util.find_spec(name) is None]:
        print(f"Only TensorFlow is timed; for ONNX Runtime: pip install {' '.join(missing)}")
        return {}
    plain, fused = f"{folder}/plain.onnx", f"{folder}/fused.onnx"
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()) as silence, contextlib.redirect_stderr(silence):
        export_onnx(plain, fused)
    return {"ORT": load_onnx(plain), "ORT fused": load_onnx(fused)}


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


def run_cases(sides: dict[str, Side], vocab_size: int) -> None:
    print("largest difference from float32:", largest_difference(sides, make_batch(CASES["32 mixed"], vocab_size)))
    compared = ("float32", "bfloat16") if "ORT" in sides else ()
    print("p50, ms   " + "".join(f"{name:>12}" for name in (*sides, *(f"{name} x" for name in compared))))
    for case, lengths in CASES.items():
        batch, best = make_batch(lengths, vocab_size), dict.fromkeys(sides, (True, float("inf")))
        for _ in range(FLAGS.rounds):
            best = {name: min(best[name], time_round(side(batch))) for name, side in sides.items()}
        shown = [f"{value:11.2f}{'?' if disturbed else ' '}" for disturbed, value in best.values()]
        shown += [f"{min(best['ORT'], best['ORT fused'])[1] / best[name][1]:12.2f}" for name in compared]
        print(f"{case:10}" + "".join(shown), flush=True)


def main(_: BenchmarkOptions) -> None:
    logging.disable(logging.WARNING)
    flags.load_tensorflow()

    from bert_tf2.weights import huggingface

    found = [name for name in ("tensorflow", *OTHER_SIDE) if importlib.util.find_spec(name)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in found)
    print(f"{machine.describe()}\n{versions}; {FLAGS.threads} threads, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: make_tensorflow(f"{folder}/{name}", name) for name in ("float32", "bfloat16")}
        run_cases(sides | make_onnx(folder), huggingface.HuggingFaceFolder(FLAGS.weights).config.vocab_size)


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)
