"""What the models are made of: their base, field types, quantities, object metadata."""
