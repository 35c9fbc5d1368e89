"""Writes weights of any kind in a format: the last step of a conversion (`convert`)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from bert_tf2.config import BertConfig
from bert_tf2.support import environment, files, outputs, progress
from bert_tf2.support.quiet import load_tensorflow
from bert_tf2.weights import bundle, huggingface_writing, keras_files, metadata, names
from bert_tf2.weights.base import CONFIG_FILE, VOCABULARY_FILE, Weights, check_finite
from bert_tf2.weights.labels import LABEL_MAP_FILE, LabelMap, save_label_map

if TYPE_CHECKING:
    from bert_tf2.weights.options import ConversionOptions


@dataclasses.dataclass
class Target:
    """A conversion that is ready to be written: the weights, and what is written beside them."""

    source: Weights
    config: BertConfig
    vocabulary: list[str] | None
    do_lower_case: bool
    case_is_stated: bool
    labels: LabelMap | None
    options: ConversionOptions

    @property
    def _weights(self) -> list[str]:
        rows = names.known(self.config.num_hidden_layers)
        return [row.reference for row in rows if row.reference in self.source.shapes]

    def write(self) -> list[str]:
        """Writes the files; returns messages about what was written and omitted."""
        files.make_directory(os.path.dirname(self.options.output) or ".")
        environment.check_space(self.options.output, self._num_bytes(), "the converted weights")
        report = {"tf1": self._write_tf1, "hf": self._write_huggingface, "keras": self._write_keras}[self.options.to]()
        if self.vocabulary is None:
            report.append("No vocabulary was found, and none written (--vocab_file).")
        return report + self._left_from_before()

    def _num_bytes(self) -> int:
        """Returns the minimum number of bytes to write. Keras writes the weights twice before it removes one copy."""
        shapes = self.source.shapes
        chosen = shapes if self.options.to == "tf1" and not self.options.weights_only else self._weights
        return sum(4 * math.prod(shapes[name]) for name in chosen) * (2 if self.options.to == "keras" else 1)

    def _left_from_before(self) -> list[str]:
        """Returns a message if the folder has older files that this conversion does not replace."""
        unwritten = {
            VOCABULARY_FILE: self.vocabulary is None,
            LABEL_MAP_FILE: not self.labels,
            metadata.TOKENIZATION_FILE: not self.case_is_stated or self.options.to == "hf",
        }
        there = files.list_directory(self.options.output)
        old = [name for name, absent in unwritten.items() if absent and name in there]
        return [f"{', '.join(old)} in {self.options.output} is from before and may not belong to it."] if old else []

    def _arrays(self, chosen: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yields these variables. Reads all others too, since damage in them suggests damage elsewhere."""
        chosen = dict.fromkeys(chosen)
        every = [*chosen, *(name for name in self.source.shapes if name not in chosen)]
        sizes = {name: math.prod(self.source.shapes[name]) / 1e6 for name in every}
        for name in progress.track(every, "Converting", sum(sizes.values()), "million numbers", size=sizes.get):
            value = self.source.get(name)
            if name in chosen:
                if not self.options.allow_nonfinite:
                    check_finite(self.source.path, name, value)
                yield name, value

    def _write_tf1(self) -> list[str]:
        folder = self.options.output
        prefix = os.path.join(folder, "bert_model.ckpt")
        chosen = self._weights if self.options.weights_only else [*self._weights, *self._others()]
        with self._companions(folder):
            bundle.write(prefix, self._arrays(chosen))
        report = [f"Wrote {prefix}: {len(chosen)} variables."]
        if self.options.weights_only:
            report += self._left_out(self._others())
        if self.config.hidden_act == "gelu_erf":
            report.append(
                'Its bert_config.json says "gelu_erf", the exact function, which google-research/bert does not'
                " know; --hidden_act=gelu writes the approximation it has (the two"
                " differ by less than 5e-4)."
            )
        written = self.config.to_dict()
        if "layer_norm_eps" in written:
            report.append(
                f"Its bert_config.json says layer_norm_eps {self.config.layer_norm_eps}; google-research/bert always"
                " takes 1e-12."
            )
        unknown = {}
        if not self.config.has_position_table:
            unknown["position_embedding_type"] = "which has a table of positions"
        if not self.config.tie_word_embeddings:
            unknown["tie_word_embeddings"] = "whose output weights are the table of word embeddings"
        report += [
            f"Its bert_config.json says {key} {json.dumps(written[key])}; google-research/bert, {what}, cannot use"
            " these weights."
            for key, what in unknown.items()
        ]
        return report

    def _others(self) -> list[str]:
        """Returns the source's variables that are not BERT weights: slots, the step, unknown ones."""
        weights = {*self._weights}
        return [name for name in self.source.shapes if name not in weights]

    def _left_out(self, left_out: list[str]) -> list[str]:
        """Returns messages that count the optimizer's variables and name all others."""
        state = [name for name in left_out if names.is_optimizer_state(name)]
        others = [name for name in left_out if name not in state]
        report = [f"Left out: {len(state)} variables of the optimizer."] if state else []
        return report + ([f"Left out: {', '.join(others)}."] if others else [])

    @contextlib.contextmanager
    def _companions(self, folder: str) -> Iterator[None]:
        """Writes the files beside the weights, which the caller writes inside the context; none if that fails."""
        texts = {CONFIG_FILE: self.config.to_json_string()}
        if self.vocabulary is not None:
            texts[VOCABULARY_FILE] = "".join(f"{entry}\n" for entry in self.vocabulary)
        if self.case_is_stated:  # a recorded guess would later look like a fact
            texts[metadata.TOKENIZATION_FILE] = metadata.record_of(self.do_lower_case, self.vocabulary)
        paths = [os.path.join(folder, name) for name in texts]
        with files.complete_or_absent(*paths) as beside:
            for path, text in zip(beside, texts.values(), strict=True):
                with files.open_binary(path, "wb") as stream:
                    stream.write(text.encode("utf-8"))
            outputs.refuse_inputs(beside, paths)  # before the weights are written
            yield
        if self.labels:
            save_label_map(folder, self.labels)

    def _write_huggingface(self) -> list[str]:
        report = huggingface_writing.write_folder(
            self.options.output,
            self.source.shapes,
            self._arrays(self._weights),
            self.config,
            vocabulary=self.vocabulary,
            do_lower_case=self.do_lower_case,
            labels=self.labels,
        )
        return report + self._left_out(self._others())

    def _write_keras(self) -> list[str]:
        load_tensorflow()  # only this target needs it
        from bert_tf2.weights import models

        model = models.make_model(self.source, self.config, self.labels)
        output = self.options.output
        path = output if keras_files.recognizes_name(output) else os.path.join(output, "bert_model.keras")
        variables = names.tf1_variables(model)
        for name, value in self._arrays(self._weights):
            if name in variables:
                variables[name].assign(value)
        with self._companions(output) if path != output else contextlib.nullcontext():
            keras_files.write(path, model)
        fresh = [name for name in variables if name not in self.source.shapes]
        report = [f"Wrote {path}: a {type(model).__name__}."]
        if path == output and (self.vocabulary is not None or self.labels):
            report.append(
                "Such a file holds no vocabulary and no names of labels; give a folder as --output to have them beside"
                " it."
            )
        report += [f"Not in the input, and random now: {', '.join(fresh)}."] if fresh else []
        return report + self._left_out([name for name in self.source.shapes if name not in variables])
