"""The tokenizer files of llama2.c (``tok512.bin``): SentencePiece's byte-pair pieces with scores, merged best score first.

A file is int32 longest piece, then for each id float32 score, int32 length, bytes; all little-endian. 0 is <unk>, 1 BOS,
2 EOS, 3 .. 258 the bytes, and the pieces follow. Text begins with a space that is not there, and loses it again after BOS.
"""

import heapq
import struct
from pathlib import Path

import numpy as np

from jaxunlearn.data import files

_BOS, _EOS, _BYTES = 1, 2, 3


class Llama2c:
    """A tokenizer as ``tokens.Tokenizer`` has it.

    Args:
        pieces: Bytes of each id.
        scores: Higher is merged first.
    """

    bos: int | None = _BOS
    eos: int = _EOS
    pad: int = _EOS

    def __init__(self, pieces: list[bytes], scores: list[float]):
        self.pieces, self.scores = pieces, scores
        self.vocabulary = len(pieces)
        self._ids = {piece: i for i, piece in reversed(list(enumerate(pieces)))}

    @classmethod
    def read(cls, path: Path) -> "Llama2c":
        """Reads a file.

        Raises:
            InputError: It is damaged.
        """
        pieces, scores = [], []
        try:
            data = path.read_bytes()
            at = 4
            while at < len(data):
                score, size = struct.unpack_from("<fi", data, at)
                piece = data[at + 8 : at + 8 + size]
                if size < 0 or len(piece) < size:
                    raise ValueError(f"piece {len(pieces)} has {len(piece)} of {size} bytes")
                pieces.append(piece)
                scores.append(score)
                at += 8 + size
            if len(pieces) <= _BYTES + 255:
                raise ValueError(f"{len(pieces)} pieces are fewer than the bytes need")
        except files.DAMAGE as error:
            raise files.unreadable("a tokenizer of llama2.c", path, error) from error
        return cls(pieces, scores)

    def save(self, path: Path) -> None:
        """Writes the file that ``read`` reads."""
        rows = (struct.pack("<fi", score, len(piece)) + piece for piece, score in zip(self.pieces, self.scores))
        path.write_bytes(struct.pack("<i", max(map(len, self.pieces))) + b"".join(rows))

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids [n] int32 without BOS, and the range of characters [n, 2] of each; that of the added space is empty."""
        ids, starts, ends = [], [], []
        for position, character in enumerate(" " + text if text else ""):
            raw = character.encode("utf-8", "surrogatepass")
            whole = self._ids.get(raw)
            for piece in [whole] if whole is not None else [byte + _BYTES for byte in raw]:
                ids.append(piece)
                starts.append(max(position - 1, 0))
                ends.append(position)
        self._merge(ids, ends)
        kept = [i for i, piece in enumerate(ids) if piece >= 0]
        return (
            np.array([ids[i] for i in kept], np.int32),
            np.array([(starts[i], ends[i]) for i in kept], np.int32).reshape(-1, 2),
        )

    def _merge(self, ids: list[int], ends: list[int]) -> None:
        """Joins neighbours in place, the best score first and the leftmost of equals; what a piece swallowed becomes -1."""
        after, before = list(range(1, len(ids) + 1)), list(range(-1, len(ids) - 1))
        heap: list[tuple[float, int, int, int, int]] = []

        def offer(left: int) -> None:
            right = after[left]
            if right < len(ids):
                merged = self._ids.get(self.pieces[ids[left]] + self.pieces[ids[right]])
                if merged is not None:
                    heapq.heappush(heap, (-self.scores[merged], left, ids[left], ids[right], merged))

        for left in range(len(ids)):
            offer(left)
        while heap:
            _, left, own, other, merged = heapq.heappop(heap)
            right = after[left]
            if right >= len(ids) or (ids[left], ids[right]) != (own, other):
                continue  # one of the two is part of another piece by now
            ids[left], ends[left], ids[right] = merged, ends[right], -1
            after[left] = after[right]
            if after[left] < len(ids):
                before[after[left]] = left
            offer(left)
            if before[left] >= 0:
                offer(before[left])

    def decode(self, ids: np.ndarray) -> str:
        """Text of ids; special ones say nothing, bytes that are no text become U+FFFD, and after BOS a space is dropped."""
        sequence = [int(i) for i in ids]
        raw = b"".join(bytes([i - _BYTES]) if i < _BYTES + 256 else self.pieces[i] for i in sequence if i >= _BYTES)
        text = raw.decode("utf-8", "replace")
        return text.removeprefix(" ") if sequence[:1] == [_BOS] else text
