"""One pretraining step of transformers on torch, on a GPU if there is one: BertForPreTraining with torch's AdamW."""

from __future__ import annotations

import torch
import transformers
import workload

flags, config, batches = workload.peer(__doc__.splitlines()[0], ("plain", "compile"))
sizes = {name: value for name, value in config.items() if name in workload.BASE}
device = "cuda" if torch.cuda.is_available() else "cpu"
model = transformers.BertForPreTraining(transformers.BertConfig(**sizes)).to(device)
model.train()
decayed, others = [], []
for name, parameter in model.named_parameters():
    (others if "bias" in name or "LayerNorm" in name else decayed).append(parameter)
groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-4, eps=1e-6, fused=True)
forward = torch.compile(model) if flags.variant == "compile" else model


def as_torch(batch):
    """Converts a batch for transformers, which takes a label for every token, -100 for tokens without a label."""
    arrays = {name: torch.from_numpy(values).to(device) for name, values in batch.items()}
    ids, positions = arrays["masked_lm_ids"].long(), arrays["masked_lm_positions"].long()
    labels = torch.full(arrays["input_ids"].shape, -100, device=device)
    row, column = torch.nonzero(arrays["masked_lm_weights"], as_tuple=True)
    labels[row, positions[row, column]] = ids[row, column]
    return {
        "input_ids": arrays["input_ids"].long(),
        "attention_mask": arrays["input_mask"].long(),
        "token_type_ids": arrays["segment_ids"].long(),
        "labels": labels,
        "next_sentence_label": arrays["next_sentence_labels"].long(),
    }


def step(batch):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=flags.precision == "bfloat16"):
        loss = forward(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()  # `float` waits for it


measured = workload.time_peer(flags, step, [as_torch(batch) for batch in batches])
versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
if device == "cuda":
    measured["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
print(workload.result(flags.batch_size, mean_length=flags.mean_length, versions=versions, **measured))
