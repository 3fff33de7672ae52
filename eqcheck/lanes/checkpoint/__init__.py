"""Decoders judged by their tokens alone: engines that load a checkpoint, and decoders in environments of their own."""
