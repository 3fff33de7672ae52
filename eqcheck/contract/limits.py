"""Upper bounds of a case, and of a file that holds one; a file may come from anyone.

The bounds are far beyond what is drawn. Within them a right decoder, the target (a table of 4,096 logits for each token
of the vocabulary) and the trace (all entries at each call) take seconds, and at most 2 GB.
"""

MOST_VOCABULARY = 1024
MOST_ROWS = 256
MOST_TOKENS_OF_ROW = 1024  # new ones included
MOST_TOKENS = 8192  # of all rows together
MOST_DRAFT_TOKENS = 64
MOST_WORK = 2**22  # the tokens of all rows, times the calls of target and draft if nothing is accepted
MOST_BEFORE = 256  # earlier requests of a case
MOST_WORK_BEFORE = 4 * MOST_WORK  # of them together
MOST_SPARE_SLOTS = 2**14  # of preallocated caches, in all rows

ENGINE_ROWS = 512  # of a case for an engine that loads a checkpoint
ENGINE_TOKENS = 2**16
ENGINE_PENALTY = 100

CASE_TIMEOUT, CASE_MEMORY = 60.0, 2**31  # seconds and bytes that a case usually may take
LOADING = 300.0  # seconds that an engine may take to load a checkpoint under new settings
TIMEOUTS = (1.0, 86400.0)  # in less, a right decoder on a slow machine would pass for one that hangs
MEMORY = (2**26, 2**50)

FILE_BYTES = 2 * 2**20  # ten times what the largest case takes
FILE_LEVELS = 8  # of lists and objects; a case has five
REPORT_BYTES, REPORT_LEVELS = 64 * FILE_BYTES, 16  # a report holds many cases
FILE_DIGITS = 20  # of an integer
FILE_LINE = 4096  # characters
