"""Evidence against a sampler: are the tokens of every row drawn from the target's law, row by row and alone?

laws.py       one sampled row, the laws that it should follow, and those that a wrong sampler may have
wealth.py     the bets against the right law, the evidence that they earn over an audit, and the verdict
exclusion.py  the faults that an audit without a violation excludes
naming.py     which part of a sampler is wrong, and how sure a name has to be
round_laws.py the laws of rounds whose draft tokens are known, and whether a name fits all tokens
token_laws.py the laws of rounds that are hidden

Nothing but numpy is imported.
"""
