"""One audit of a decoder, whatever the evidence: its loop, its workers, its shards, and the lanes that plug in."""
