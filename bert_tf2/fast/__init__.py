"""What makes BERT fast and changes no answer; `encoder.accelerate(model, plan)` puts it around a model."""
