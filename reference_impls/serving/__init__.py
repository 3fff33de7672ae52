"""Common parts of the three engines: one calling convention, and caches with one write offset per row.

requests   Prompt, Update, Row: what goes in, what comes out, what an engine keeps of it
engine     Engine: `generate` for a list of prompts, `stream` for prompts as they arrive
checks     what an engine refuses, and the words it says it with
stats      what an engine did, counted and timed
row_cache  RowModel: a causal LM whose cache rows are written each at its own offset
bounded    Bounded: an engine over a pool, within a number of bytes if asked
pool       Pool: the rows in flight in two such models; rows join and leave
sampling   how a round's tokens are chosen: greedily, or drawn from each row's law
branches   trees in such caches: where nodes stand, what they see, how a path moves
recursive  what is drawn for the sampled rows of trees
rounds     speculate: one round of draft, verify and commit over them
decoder    decode: an engine as a decoder of eqcheck
"""

from eqcheck import Unsupported

from .bounded import Bounded
from .checks import OutOfMemory
from .decoder import decode
from .engine import Engine
from .pool import Pool, enough
from .requests import Prompt, PromptError, Row, Update
from .rounds import speculate
from .row_cache import RowModel
from .sampling import SAMPLING, Greedy, chooser
from .stats import Stats

__all__ = [
    "SAMPLING",
    "Bounded",
    "Engine",
    "Greedy",
    "OutOfMemory",
    "Pool",
    "Prompt",
    "PromptError",
    "Row",
    "RowModel",
    "Stats",
    "Unsupported",
    "Update",
    "chooser",
    "decode",
    "enough",
    "speculate",
]
