"""What the exports answer in LiteRT, converted without TensorFlow's own operations."""

import numpy as np
import pytest
import tensorflow as tf
from export_cases import MAKERS, export, rows

pytestmark = pytest.mark.extra


@pytest.mark.filterwarnings("ignore")  # TensorFlow announces the interpreter's own package
@pytest.mark.parametrize("task", MAKERS)
def test_it_answers_as_tensorflow(tmp_path, task):
    made = export(tmp_path, task, text_signatures=False)
    for name in ("serving_default", "serving_ids")[: 2 if task == "classifier" else 1]:
        content = tf.lite.TFLiteConverter.from_saved_model(made.folder, signature_keys=[name]).convert()
        asked = tf.lite.Interpreter(model_content=content).get_signature_runner(name)
        for count in (1, None):  # a single row leaves half of the groups of rows empty
            inputs = {key: rows()[key][:count] for key in asked.get_input_details()}
            found, wanted = asked(**inputs), made.ask(name, **inputs)
            for key, value in wanted.items():
                if value.dtype.kind == "f":
                    np.testing.assert_allclose(found[key], value, atol=1e-5, err_msg=key)
                else:
                    np.testing.assert_array_equal(found[key], value, err_msg=key)
