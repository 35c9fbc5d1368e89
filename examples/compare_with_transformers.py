"""Convert to Hugging Face and compare the answers: python examples/compare_with_transformers.py MODEL_FOLDER"""

import sys
import tempfile

import torch
import transformers

import bert_tf2.commands

model, folder = (sys.argv[1:] or sys.exit(__doc__))[0], tempfile.mkdtemp(prefix="hugging_face_")
transformers.logging.set_verbosity_error()  # hides a warning about heads that BertForMaskedLM does not have
bert_tf2.commands.call("convert_checkpoint", input=model, output=folder, to="hf")
ours, theirs = bert_tf2.load(model), transformers.BertForMaskedLM.from_pretrained(folder).eval()
tokenizer = transformers.BertTokenizer.from_pretrained(folder)
inputs = tokenizer("The capital of Japan is [MASK].", return_tensors="pt")
with torch.no_grad():
    scores = theirs(**inputs).logits[0, inputs["input_ids"][0] == tokenizer.mask_token_id].softmax(-1)[0]
for word in ours.fill_mask("The capital of Japan is [MASK].").masks[0].predictions:
    print(f"{word.token:10}  here {word.probability:.6f}  there {scores[ours.tokenizer.vocab[word.token]]:.6f}")
