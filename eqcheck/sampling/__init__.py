"""Evidence about sampled rows: cases that are drawn to bet on, and what the bets say together."""
