"""Evidence from engines that return tokens alone: checkpoints whose truth is known, and the search for a cause."""
