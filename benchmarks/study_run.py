"""One training of the study, and what is measured of it."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import study_probes as probes
import tensorflow as tf

from bert_tf2 import heads, losses, tokenization
from bert_tf2.config import BertConfig
from bert_tf2.data import records
from bert_tf2.training.devices import build_model
from bert_tf2.training.loop import Trainer
from bert_tf2.training.options import TrainOptions
from bert_tf2.weights import checkpoint, metadata

# The keys of bert_config.json of each variant; `base` and those that are not here have the reference's.
_KEYS = {
    "untied": {"tie_word_embeddings": False},
    "cloned_frozen": {"tie_word_embeddings": False},
    "from_sinusoid": {"position_embedding_type": "learned_from_sinusoidal"},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "no_positions": {"position_embedding_type": "none"},
}
_CURVE_POINTS = 10
_EVAL_BATCH = 256
# Texts of the training that the probes learn from.
_PROBE_ROWS = 2048


def train(options, folder: Path, variant: str, seed: int, learning_rate: float) -> dict[str, Any]:
    """Trains one variant with one seed, and measures it on the held-out documents.

    The weights are kept in FOLDER/VARIANT_RATE. If they are there, they are only measured.

    Args:
      options: study.BenchmarkOptions.
      folder: has vocab.txt, and the records of this seed's split of the documents.
      variant: one of study.VARIANTS.
      seed: of the initial weights and the order of the records.
      learning_rate: the highest of the schedule.

    Returns:
      The measures, as JSON takes them.
    """
    # Two trainings of small models beside each other take less time than in turn with two threads.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    words = [line.strip() for line in tokenization.read_entries(str(folder / "vocab.txt"))]
    model = _make_model(options, variant, seed, len(words))
    held_out = {form: _Texts(folder, f"heldout_{form}", options, words) for form in ("pairs", "single")}
    own = held_out["single" if variant == "no_pairs" else "pairs"]
    before = {name: table.copy() for name, table in _tables(model).items()}
    output_dir = folder / f"{variant}_{learning_rate:g}"
    stored = output_dir / "training.json"
    if stored.exists():
        checkpoint.initialize(model, str(output_dir / "bert_model.ckpt"))
    else:
        facts = _run_steps(options, folder, model, variant, seed, learning_rate, words, own)
        output_dir.mkdir(exist_ok=True)
        checkpoint.save(str(output_dir / "bert_model.ckpt"), checkpoint.tf1_variables(model), options.steps)
        metadata.write(str(output_dir), model.config)
        stored.write_text(json.dumps(facts))  # last: it says that the weights are whole
    seen = _Texts(folder, "train_single", options, words, _PROBE_ROWS)
    parameters = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    return {
        **{"variant": variant, "seed": seed, "learning_rate": learning_rate, "parameters": parameters},
        **json.loads(stored.read_text()),
        **{name: getattr(options, name) for name in ("hidden_size", "max_seq_length")},
        "heldout": {name: data.measure_words(model) for name, data in held_out.items()},
        "next_sentence_accuracy": held_out["pairs"].next_sentence_accuracy(model) if variant != "no_pairs" else None,
        "probes": _measure_order(model, seen, held_out["single"]),
        "tables": _compare(model, before, own),
    }


def _make_model(options, variant: str, seed: int, vocab_size: int):
    width = options.hidden_size
    sizes = {"vocab_size": vocab_size, "hidden_size": width, "num_hidden_layers": options.num_hidden_layers}
    sizes |= {"num_attention_heads": max(1, width // 24), "intermediate_size": 4 * width, "type_vocab_size": 2}
    sizes |= {"max_position_embeddings": options.max_seq_length}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    # The range is that of the demo: so small a model learns sooner with it.
    config = BertConfig(**sizes, **dropout, initializer_range=0.05, **_KEYS.get(variant, {}))
    kind = heads.MaskedLMModel if variant == "no_pairs" else heads.PretrainingModel
    model = build_model(tf.distribute.get_strategy(), lambda: kind(config), seed)
    if variant == "cloned_frozen":
        table = model.masked_lm.output_weights
        table.assign(model.bert.get_embedding_table())
        table.trainable = False
    return model


def _sizes(options, vocab_size: int) -> dict[str, int]:
    return {
        "max_seq_length": options.max_seq_length,
        "max_predictions_per_seq": options.max_predictions_per_seq,
        "vocab_size": vocab_size,
        "type_vocab_size": 2,
    }


def _run_steps(options, folder: Path, model, variant, seed, learning_rate, words, held_out) -> dict[str, Any]:
    """Trains; returns the `curve`, (step, loss of the held-out masked words) at some steps, and the time it took."""
    began, cpu = time.monotonic(), time.process_time()
    kind, form = (records.MASKED_WORDS, "single") if variant == "no_pairs" else (records.PRETRAINING, "pairs")
    data = records.read_records(
        [str(folder / f"train_{form}.tfrecord")], kind, _sizes(options, len(words)), options.batch_size,
        shuffle_seed=seed, repeat=True, drop_remainder=True,
    )  # fmt: skip
    if variant == "all_masked":
        data = data.map(_all_masked(words.index("[MASK]")))
    train_options = TrainOptions(
        output_dir="", train_batch_size=options.batch_size, learning_rate=learning_rate, random_seed=seed,
        num_train_steps=options.steps, num_warmup_steps=options.steps // 20, adam_bias_correction=True,
    )  # fmt: skip
    step = Trainer(model, tf.distribute.get_strategy(), train_options).step.compiled()
    curve, batches = [], iter(data)
    for number in range(options.steps):
        step(next(batches), tf.constant(number, tf.int64))
        if (number + 1) % max(1, options.steps // _CURVE_POINTS) == 0:
            curve.append((number + 1, held_out.measure_words(model, part=4)["mask"]["loss"]))
    took = {"seconds": time.monotonic() - began, "processor_seconds": time.process_time() - cpu}
    return {"curve": curve, **took}


def _all_masked(mask_id: int) -> Callable:
    """The reference replaces 80 % of the predicted words by [MASK], and has no flag for it; this replaces all."""

    def replace(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        rows = tf.where(batch["masked_lm_weights"] > 0)  # [M, 2]: the row, and the number of the prediction
        places = tf.cast(tf.gather_nd(batch["masked_lm_positions"], rows), tf.int64)
        masks = tf.fill([tf.shape(rows)[0]], tf.constant(mask_id, batch["input_ids"].dtype))
        where = tf.stack([rows[:, 0], places], axis=1)
        return {**batch, "input_ids": tf.tensor_scatter_nd_update(batch["input_ids"], where, masks)}

    return replace


class _Texts:
    """The texts of a file of records, and what models say to them."""

    def __init__(self, folder: Path, name: str, options, words: list[str], most: int = -1):
        """Reads at most this number of records of FOLDER/NAME.tfrecord; "pairs" in the name, or single texts."""
        kind = records.PRETRAINING if "pairs" in name else records.MASKED_WORDS
        path = str(folder / f"{name}.tfrecord")
        read = records.read_records([path], kind, _sizes(options, len(words)), _EVAL_BATCH)
        read = read.take(-1 if most < 0 else most // _EVAL_BATCH)
        parts = [{name: values.numpy() for name, values in batch.items()} for batch in read]
        self._rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self._mask_id, self._vocab_size = words.index("[MASK]"), len(words)
        self._first_word = words.index("[MASK]") + 1
        self.counts = np.bincount(self.plain()[self._rows["input_mask"] > 0], minlength=len(words))

    def _with(self, what: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The input, with other ids at the places of the predictions: `what` of the ids that were there."""
        ids, rows = self._rows["input_ids"].copy(), self._rows
        row, number = np.nonzero(rows["masked_lm_weights"] > 0)
        ids[row, rows["masked_lm_positions"][row, number]] = what(rows["masked_lm_ids"][row, number])
        return ids

    @property
    def lengths(self) -> np.ndarray:
        return self._rows["input_mask"].sum(axis=1)

    def plain(self) -> np.ndarray:
        """The texts as they were before they were masked, int [B, F]."""
        return self._with(lambda right: right)

    def _batches(self, ids: np.ndarray, part: int = 1) -> Iterator[dict[str, np.ndarray]]:
        """Batches with these ids; of every `part`-th row only."""
        rows = {**self._rows, "input_ids": ids}
        rows = {name: values[::part] for name, values in rows.items()}
        for start in range(0, len(rows["input_ids"]), _EVAL_BATCH):
            yield {name: values[start : start + _EVAL_BATCH] for name, values in rows.items()}

    def measure_words(self, model, part: int = 1) -> dict[str, dict[str, float]]:
        """Loss and accuracy of the predictions, where the model reads [MASK], the right word, or a random one there."""
        random = np.random.default_rng(0)
        inputs = {"mask": lambda right: np.full_like(right, self._mask_id)}
        if part == 1:
            inputs["kept"] = lambda right: right
            inputs["random"] = lambda right: random.integers(self._first_word, self._vocab_size, right.shape)
        return {name: self._score(model, self._with(what), part) for name, what in inputs.items()}

    def _score(self, model, ids: np.ndarray, part: int) -> dict[str, float]:
        loss = right = count = 0.0
        run = _graph(model, heads.MaskedLMModel.outputs)
        for batch in self._batches(ids, part):
            found, weights = run(_tensors(batch)), batch["masked_lm_weights"]
            loss += float((weights * found["masked_lm_example_loss"]).numpy().sum())
            right += float((weights * (found["masked_lm_predictions"].numpy() == batch["masked_lm_ids"])).sum())
            count += float(weights.sum())
        return {"loss": loss / count, "accuracy": right / count, "count": count}

    def next_sentence_accuracy(self, model) -> float:
        run = _graph(model, _next_sentences)
        right = [
            run(_tensors(batch)).numpy().argmax(axis=1) == batch["next_sentence_labels"]
            for batch in self._batches(self._rows["input_ids"])
        ]
        return float(np.concatenate(right).mean())

    def states(self, model, ids: np.ndarray) -> np.ndarray:
        run = _graph(model, _states)
        return np.concatenate([run(_tensors(batch)).numpy() for batch in self._batches(ids)])

    def first_batch(self) -> dict[str, np.ndarray]:
        return next(self._batches(self._with(lambda right: np.full_like(right, self._mask_id))))


def _next_sentences(model, batch) -> tf.Tensor:
    return model.next_sentence(model.encode(batch).pooled_output)


def _states(model, batch) -> tf.Tensor:
    return model.encode(batch).sequence_output


def _measure_order(model, seen: _Texts, held_out: _Texts) -> dict[str, float]:
    """What linear probes tell from the last states of texts without any [MASK].

    They learn from texts that the model was trained on, and are asked about the held-out ones.
    """
    swapped = [probes.swap_neighbors(texts.plain(), texts.lengths, seed) for seed, texts in enumerate((seen, held_out))]
    states = [texts.states(model, made.input_ids) for texts, made in zip((seen, held_out), swapped, strict=True)]
    plain = [texts.states(model, texts.plain()) for texts in (seen, held_out)]
    places = [probes.position_labels(texts.lengths, texts.plain().shape[1]) for texts in (seen, held_out)]
    return {
        "order": probes.order_accuracy(plain[0], places[0], states[1], swapped[1].pairs),
        "order_count": len(swapped[1].pairs),
        "swapped": probes.probe_accuracy(states[0], swapped[0].labels, states[1], swapped[1].labels),
        "swapped_count": int((swapped[1].labels >= 0).sum()),
        "position": probes.probe_accuracy(plain[0], places[0], plain[1], places[1]),
        "position_count": int((places[1] >= 0).sum()),
    }


def _tensors(batch: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in batch.items()}


@functools.cache
def _graph(model, function: Callable) -> Callable:
    """The function of a model and a batch, as a graph; batches of other sizes do not make another one."""
    return tf.function(lambda batch: function(model, batch), reduce_retracing=True)


# Tables


def _tables(model) -> dict[str, np.ndarray]:
    positions = model.bert.embeddings.position_embeddings
    found = {"input": model.bert.get_embedding_table().numpy(), "output": model.get_output_table().numpy()}
    return found if positions is None else {**found, "positions": positions.numpy()}


def _compare(model, before: Mapping[str, np.ndarray], held_out: _Texts) -> dict[str, Any]:
    """How far the tables have moved, and how alike the word tables at both ends and the positions have become."""
    after = _tables(model)
    # Words that occur in the held-out text, so that frequent ones count, and unused entries do not.
    frequent = np.argsort(-held_out.counts, kind="stable")[:300]
    frequent = frequent[held_out.counts[frequent] > 0]
    moved = {name: float(np.linalg.norm(after[name] - before[name]) / np.linalg.norm(before[name])) for name in after}
    ends = probes.compare_tables(after["input"][frequent], after["output"][frequent])
    found: dict[str, Any] = {"moved": moved, "ends": ends, "gradients": _gradients_at_both_ends(model, held_out)}
    if "positions" in after:
        found["similarity_by_distance"] = probes.similarity_by_distance(after["positions"])
    return found


def _gradients_at_both_ends(model, held_out: _Texts) -> dict[str, float]:
    """The norms of the gradients of the word table as the input's rows and as the output's, for a batch."""
    batch = _tensors(held_out.first_batch())
    table = model.bert.embeddings.word_embeddings.value
    with tf.GradientTape(persistent=True) as tape:
        output_table = tf.identity(model.get_output_table())
        tape.watch(output_table)
        output = model.encode(batch)
        words = [batch[f"masked_lm_{name}"] for name in ("positions", "ids", "weights")]
        loss, _, _ = losses.get_masked_lm_output(
            model.masked_lm, output.sequence_output, tf.stop_gradient(output_table), *words
        )
        again, _, _ = losses.get_masked_lm_output(
            model.masked_lm, tf.stop_gradient(output.sequence_output), output_table, *words
        )
    of_input = tf.convert_to_tensor(tape.gradient(loss, table))
    of_output = tape.gradient(again, output_table)
    return {"input": float(tf.norm(of_input)), "output": float(tf.norm(of_output))}
