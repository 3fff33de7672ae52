"""A tokenizer whose texts are token ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eqcheck.contract.errors import Unsupported, UsageError


class IdTokenizer:
    """Translate between tokens and texts of token ids without loss: ``"12 7 99"`` is ``[12, 7, 99]``.

        >>> tokenizer = IdTokenizer(128, pad_token_id=0, eos_token_ids=(5,))
        >>> tokenizer.encode("12 7 99"), tokenizer.decode([12, 7, 99])
        ([12, 7, 99], '12 7 99')
        >>> batch = tokenizer(["12 7 99", "5"], padding=True, padding_side="left", return_tensors="pt")
        >>> batch.input_ids.tolist(), batch.attention_mask.tolist()
        ([[12, 7, 99], [0, 0, 5]], [[1, 1, 1], [0, 0, 1]])

    It answers as a tokenizer of transformers does: a call returns a `BatchEncoding`. No token is added, and
    ``skip_special_tokens`` skips none: an EOS that is left out could not be judged, and a pad that is left out may have
    been a token. So the text of a padded row has its pads, and the adapter cuts them where it knows that they are pads.
    The mask of a batch follows from the lengths of its rows, never from the pad id. Texts that are put together need
    a space between them.

    ``eos_token_id`` is None where there is no EOS. Raises `UsageError` for text that is not ids, and `Unsupported`
    where ``eos_token_id`` is asked for and there are several: declare ``requires=("one-eos",)``.
    """

    bos_token = bos_token_id = unk_token = unk_token_id = None
    name_or_path = "ids"
    model_max_length = 2**30

    def __init__(
        self,
        vocab_size: int,
        pad_token_id: int | None,
        eos_token_ids: Iterable[int] = (),
        *,
        padding_side: str = "left",
    ) -> None:
        self.vocab_size = vocab_size
        self.pad_token_id = pad_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        self.padding_side = padding_side
        self.truncation_side = "right"

    @property
    def eos_token_id(self) -> int | None:
        if len(self.eos_token_ids) > 1:
            raise Unsupported(f"a tokenizer has one EOS id, the request has {len(self.eos_token_ids)}")
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @property
    def eos_token(self) -> str | None:
        return None if self.eos_token_id is None else str(self.eos_token_id)

    @property
    def pad_token(self) -> str | None:
        return None if self.pad_token_id is None else str(self.pad_token_id)

    @pad_token.setter
    def pad_token(self, text: str | None) -> None:
        self.pad_token_id = None if text is None else self._id(text)

    @property
    def all_special_ids(self) -> list[int]:
        return list(dict.fromkeys([*self.eos_token_ids, *([] if self.pad_token_id is None else [self.pad_token_id])]))

    def __len__(self) -> int:
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(self.vocab_size)}

    def __call__(
        self,
        text: str | list[str],
        *,
        padding: bool | str = False,
        truncation: bool | str = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        add_special_tokens: bool = True,
        **options: Any,
    ) -> Any:
        """Ids and masks of a text or of a list of texts, as a `BatchEncoding`; ``options`` are those of `pad`."""
        rows = [self._ids(one) for one in ([text] if isinstance(text, str) else text)]
        if truncation and max_length is not None:
            rows = [row[-max_length:] if self.truncation_side == "left" else row[:max_length] for row in rows]
        options |= {"padding": padding, "max_length": max_length, "return_tensors": return_tensors}
        batch = self.pad({"input_ids": rows}, **options)
        if isinstance(text, str) and return_tensors is None:
            batch.update({key: rows[0] for key, rows in batch.items()})
        return batch

    def pad(
        self,
        encoded_inputs: Any,
        *,
        padding: bool | str = True,
        max_length: int | None = None,
        padding_side: str | None = None,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = None,
        return_attention_mask: bool = True,
    ) -> Any:
        """Rows of ids, as a call returns them, filled up to one length; masks that come with them are kept."""
        from transformers import BatchEncoding

        if isinstance(encoded_inputs, list):
            encoded_inputs = {key: [one[key] for one in encoded_inputs] for key in encoded_inputs[0]}
        rows = [_ints(row) for row in encoded_inputs["input_ids"]]
        masks = [_ints(mask) for mask in encoded_inputs.get("attention_mask", [[1] * len(row) for row in rows])]
        width = 0
        if padding not in (False, "do_not_pad"):
            longest = max(map(len, rows), default=0)
            width = (max_length or longest) if padding == "max_length" else longest
            width += -width % (pad_to_multiple_of or 1)
        if self.pad_token_id is None and any(len(row) < width for row in rows):
            raise UsageError("padding: expected a tokenizer with a pad_token_id, it is None")
        left = (padding_side or self.padding_side) == "left"

        def filled(row: list[int], filler: Any) -> list[int]:
            more = [filler] * (width - len(row))
            return more + row if left else row + more

        data = {"input_ids": [filled(row, self.pad_token_id) for row in rows]}
        if return_attention_mask:
            data["attention_mask"] = [filled(mask, 0) for mask in masks]
        return BatchEncoding(data, tensor_type=return_tensors)

    def encode(self, text: str, **options: Any) -> Any:
        """Return the token ids of a text, ``list[int]``; with ``return_tensors`` a tensor ``[1, length]``."""
        return self(text, **options)["input_ids"]

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **without_effect: Any) -> str:
        """Return the text of token ids (a list, a tensor, or one id); no token is skipped."""
        return " ".join(map(str, _ints(token_ids)))

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False, **without_effect: Any) -> list[str]:
        return [self.decode(sequence) for sequence in sequences]

    def tokenize(self, text: str, **without_effect: Any) -> list[str]:
        return [str(one) for one in self._ids(text)]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        return str(ids) if isinstance(ids, int) else [str(one) for one in _ints(ids)]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return self._id(tokens) if isinstance(tokens, str) else [self._id(token) for token in tokens]

    def _ids(self, text: str) -> list[int]:
        return [self._id(word) for word in text.split()]

    def _id(self, word: str) -> int:
        known = word.isdecimal() and int(word) < self.vocab_size
        if known or word in map(str, self.all_special_ids):  # which may lie outside the vocabulary
            return int(word)
        raise UsageError(f"text: expected ids of 0..{self.vocab_size - 1} with spaces between, got {word[:40]!r}")


def _ints(ids: Any) -> list[int]:
    listed = ids.tolist() if hasattr(ids, "tolist") else ids
    return [int(one) for one in (listed if isinstance(listed, list | tuple) else [listed])]
