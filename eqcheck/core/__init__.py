"""The parts that every kind of evidence shares: cases, results, the words of a cause, the truth, and what is stored."""
