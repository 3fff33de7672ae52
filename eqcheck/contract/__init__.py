"""The contract: what a decoder is, what a request asks of it, and the words for both. Free of torch.

An adapter imports this room and no other. `decoder` has the decorator and the request.
"""

from eqcheck.contract.decoder import Decoder as Decoder
from eqcheck.contract.decoder import Request as Request
from eqcheck.contract.decoder import RowOptions as RowOptions
from eqcheck.contract.decoder import decoder as decoder
