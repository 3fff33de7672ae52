"""Evidence against a sampler: are the tokens of every row drawn from the target's law, row by row and alone?

row.py        one sampled row, and the laws it should follow
laws.py       the laws that a sampler may have, read from the tables of laws.md
bets.py       laws that a wrong sampler might follow, each a bet against the right one
pairs.py      bets that two rows, or two tokens of a row, share random numbers
wealth.py     the evidence that bets earn over an audit, and the verdict
exclusion.py  the faults that an audit without a violation excludes
naming.py     which part of a sampler is wrong, and how sure a name has to be
rounds.py     the laws of rounds whose draft tokens are known; tokens.py those of rounds that are hidden
fit.py        whether a name fits all tokens

Nothing but numpy is imported.
"""
