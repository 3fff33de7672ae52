"""Files that outlive an audit: cases, and the corpus of cases that broke a decoder."""
