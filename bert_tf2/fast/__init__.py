"""Makes BERT fast without changing its answers; `encoder.accelerate(model, plan)` accelerates a model."""
