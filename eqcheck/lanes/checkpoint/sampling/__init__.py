"""Engines that sample, on the checkpoints: rows drawn from the target's law, judged by their tokens alone."""
