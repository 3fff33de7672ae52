"""Decoders in the style of published code, which a `HashLM` cannot serve or which never heard of one, as adapters."""
