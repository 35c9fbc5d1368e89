"""Triton's backend bert_tf2: a SavedModel of export_saved_model.py answers, by the signature of a request's inputs.

A tensor [B] of the SavedModel is [B, 1] in Triton. config.pbtxt must be beside the versions of the export.
"""

import json
import pathlib
import re

import numpy as np
import triton_python_backend_utils as triton

TYPES = {"int32": "TYPE_INT32", "float32": "TYPE_FP32", "string": "TYPE_STRING"}


class TritonPythonModel:
    """The class that Triton looks for."""

    @staticmethod
    def auto_complete_config(config):
        """Adds the outputs and the inputs of all signatures; a request has the inputs of one signature."""
        info = json.loads((pathlib.Path(triton.get_model_dir()) / "model_info.json").read_text(encoding="utf-8"))
        for kind, add, more in (("inputs", config.add_input, {"optional": True}), ("outputs", config.add_output, {})):
            tensors = {}
            for signature in info["signatures"].values():
                tensors.update(signature[kind])
            for name, tensor in tensors.items():
                dims = [size or -1 for size in tensor["shape"][1:]] or [1]
                add({"name": name, "data_type": TYPES[tensor["dtype"]], "dims": dims, **more})
        return config

    def initialize(self, args):
        """Loads the version that Triton names."""
        import tensorflow as tf  # not at the top, because auto_complete_config would wait 2 seconds for it
        import tensorflow_text  # noqa: F401  registers the operations of the graphs for text

        self.tf = tf
        self.saved = tf.saved_model.load(f"{args['model_repository']}/{args['model_version']}")
        self.inputs = {name: call.structured_input_signature[1] for name, call in self.saved.signatures.items()}

    def execute(self, requests):
        """A response for each request, computed in one batch, or one by one if the batch is refused."""
        try:
            return self._answers([{one.name(): one.as_numpy() for one in request.inputs()} for request in requests])
        except (self.tf.errors.InvalidArgumentError, ValueError) as error:
            if len(requests) > 1:
                return [response for request in requests for response in self.execute([request])]
            sentence = re.search(r"assertion failed: \[(.*)\]", str(error)) or [str(error)] * 2
            return [triton.InferenceResponse([], triton.TritonError(sentence[1], triton.TritonError.INVALID_ARG))]

    def _answers(self, requests):
        given = {frozenset(request) for request in requests}
        signature = next((name for name, specs in self.inputs.items() if given == {frozenset(specs)}), None)
        if signature is None:
            known = "; ".join(", ".join(sorted(specs)) for specs in self.inputs.values())
            raise ValueError(
                f"no signature has the inputs {', '.join(sorted(requests[0]))}; the signatures have: {known}"
            )
        tensors = {}
        for name, spec in self.inputs[signature].items():
            values = np.concatenate([request[name] for request in requests])
            tensors[name] = self.tf.constant(values if len(spec.shape) > 1 else values[:, 0], spec.dtype)
        outputs = {name: value.numpy() for name, value in self.saved.signatures[signature](**tensors).items()}
        ends = np.cumsum([len(next(iter(request.values()))) for request in requests])[:-1]
        parts = {
            name: np.split(value if value.ndim > 1 else value[:, np.newaxis], ends) for name, value in outputs.items()
        }
        return [
            triton.InferenceResponse([triton.Tensor(name, part[row]) for name, part in parts.items()])
            for row in range(len(requests))
        ]
