"""Run code written for transformers 4, for text, for paged caches or for CUDA, so that it is audited as it is.

    legacy_cache   caches as in transformers 4: tuples, `key_cache`, `from_legacy_cache`, `crop` to a length, ...
    IdTokenizer    a tokenizer whose texts are token ids
    Paged          pages of K and V, written and read by an engine's page tables; `page_tables`, `kv_sizes`
    drafts_of      what the draft of a case proposes, for a store of n-grams
    no_cuda        CUDA calls that do nothing

The first and the last are context managers that undo their changes at the end of the block. Open them around the
imports and the calls of that code; docs/bridge.md shows how.
"""

from eqcheck.compat.cuda import no_cuda
from eqcheck.compat.legacy import drafts_of, legacy_cache
from eqcheck.compat.pages import Paged, kv_sizes, page_tables
from eqcheck.compat.tokenizer import IdTokenizer

__all__ = ["IdTokenizer", "Paged", "drafts_of", "kv_sizes", "legacy_cache", "no_cuda", "page_tables"]
