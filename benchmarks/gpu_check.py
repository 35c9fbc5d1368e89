"""Compares ten training steps on a GPU with the CPU, and times them: `make gpu-check`. Please report its output.

Both start from the same weights, and draw the same dropout. A share of 100 % is the rate of a matrix product alone.
"""

from __future__ import annotations

import machine
import processes

from bert_tf2.support import flags
from bert_tf2.support.errors import UserError
from bert_tf2.support.settings import MODEL, TO_DO, TRAINING, Options, options, setting

# The largest relative difference of a loss from the loss in float32 on the CPU.
TOLERANCES = {"float32": 1e-4, "tf32": 2e-3, "bfloat16": 0.02, "float16": 0.02}
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}


@options
class BenchmarkOptions(Options):
    """Compares ten training steps on a GPU with the CPU, and times them."""

    bert_config_file: str | None = setting("Configuration of the model; BERT-Base without it.", None, group=MODEL)
    batch_size: int = setting("Examples per step.", 8, group=TRAINING, low=1)
    precisions: str = setting("Precisions, separated by commas.", "float32,tf32,bfloat16,float16", group=TRAINING)
    on: str = setting("CPU compares it with itself, to try this program.", "GPU", group=TO_DO, choices=("GPU", "CPU"))

    def check(self) -> None:
        processes.check_words("precisions", self.precisions, TOLERANCES)


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow()
    import tensorflow as tf

    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    if options.on == "GPU" and not gpus:
        raise UserError("TensorFlow sees no GPU; it needs a driver of NVIDIA and its libraries, pip install '.[gpu]'")
    print(f"{machine.describe()}; {', '.join(gpu.get('device_name', 'a GPU') for gpu in gpus) or 'no GPU'}", flush=True)

    def steps(precision: str, **variables: str) -> dict:
        sizes = {"bert_config_file": options.bert_config_file, "batch_size": options.batch_size, "steps": 8}
        given = processes.flags_of(**sizes, precision=precision, unpad="none")
        return processes.measure(processes.ours("pretraining_step.py", *given, "--json"), **variables)

    wanted = steps("float32", **HIDDEN)["losses"]
    wrong = []
    for precision in options.precisions.split(","):
        found = steps(precision, **(HIDDEN if options.on == "CPU" else {}))
        difference = max(abs(a / b - 1) for a, b in zip(found["losses"], wanted, strict=True))
        wrong += [precision] if not difference <= TOLERANCES[precision] else []
        print(
            f"{precision:9} {found['examples_per_second']:8.1f} examples/s, {found['share']:.0%} of"
            f" {found['machine_gflops'] / 1000:.3g} TFLOP/s; losses differ by {difference:.1e}"
            f" (at most {TOLERANCES[precision]:.0e})",
            flush=True,
        )
    if wrong:
        raise UserError(f"the losses differ from the CPU in {', '.join(wrong)}")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)
