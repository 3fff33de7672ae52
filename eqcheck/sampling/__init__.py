"""Evidence against a sampler: are the tokens of every row drawn from the target's law, row by row and alone?

row.py        one sampled row, and the laws it should follow
bets.py       laws that a wrong sampler might follow, each a bet against the right one
pairs.py      bets that two rows, or two tokens of a row, share random numbers
wealth.py     what the bets earn over an audit, and the verdict
exclusion.py  what an audit without a violation excludes

Nothing but numpy is imported.
"""
