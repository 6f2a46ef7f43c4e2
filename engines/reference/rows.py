"""Key/value memory of a batch whose rows are at different lengths.

Row ``r`` holds one request; its tokens stand at columns ``0 .. length-1`` of that row, so nothing is
padded, and nothing moves when a neighbour joins or leaves. A forward pass sees the first ``B`` rows and the
first ``T`` columns as views; a boolean mask hides what stands beyond a row's own length. Rows are kept
dense: when one leaves, the last takes its place.

Shape legend: L layers, B rows in use, H key/value heads, T columns in use, Q new tokens, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

_FIRST_COLUMNS = 256


class _LayerRows(CacheLayerMixin):
    """Keys and values of one layer, ``[rows, H, columns, D]`` each, grown as columns are needed."""

    is_sliding = False

    def __init__(self, rows: KeyValueRows) -> None:
        super().__init__()
        self._rows = rows

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_zeros(self._shape(key_states))
        self.values = value_states.new_zeros(self._shape(value_states))
        self.is_initialized = True

    def _shape(self, states_BHQD: torch.Tensor) -> tuple[int, int, int, int]:
        return (self._rows.max_rows, states_BHQD.shape[1], self._rows.columns, states_BHQD.shape[3])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's new tokens and return everything that it may attend to, ``[B, H, T, D]``."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        if self.keys.shape[2] < self._rows.columns:
            self.keys = _widened(self.keys, self._rows.columns)
            self.values = _widened(self.values, self._rows.columns)
        rows, columns, count, seen = self._rows.places
        self.keys[rows, :, columns] = key_states.transpose(1, 2)
        self.values[rows, :, columns] = value_states.transpose(1, 2)
        return self.keys[:count, :, :seen], self.values[:count, :, :seen]

    def copy_row(self, source: _LayerRows, source_row: int, target_row: int, length: int) -> None:
        if not source.is_initialized:
            return
        assert source.keys is not None
        assert source.values is not None
        if not self.is_initialized:
            self.lazy_initialization(source.keys, source.values)
        assert self.keys is not None
        assert self.values is not None
        if self.keys.shape[2] < self._rows.columns:
            self.keys = _widened(self.keys, self._rows.columns)
            self.values = _widened(self.values, self._rows.columns)
        self.keys[target_row, :, :length] = source.keys[source_row, :, :length]
        self.values[target_row, :, :length] = source.values[source_row, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._rows.places[3], 0

    def get_seq_length(self) -> int:
        return self._rows.places[3]

    def get_max_length(self) -> int:
        return self._rows.max_columns

    # Named so in transformers before 5.2x.
    def get_max_cache_shape(self) -> int:
        return self._rows.max_columns


class KeyValueRows(Cache):
    """The cache object handed to a transformers model; see the module's docstring."""

    def __init__(self, *, layers: int, max_rows: int, max_columns: int, device: str) -> None:
        self.max_rows = max_rows
        self.max_columns = max_columns
        self.columns = min(_FIRST_COLUMNS, max_columns)
        self.lengths: list[int] = []
        """Tokens held by each row in use."""
        self._device = device
        self.places: tuple[torch.Tensor, torch.Tensor, int, int] = (torch.empty(0), torch.empty(0), 0, 0)
        """Where the pass under way writes: row and column indices ``[B, Q]``, then B and T."""
        super().__init__(layers=[_LayerRows(self) for _ in range(layers)])

    def begin(self, new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Open a pass of ``new_tokens`` more tokens for each row in use.

        Returns:
            ``position_ids [B, Q]`` and the attention mask ``[B, 1, Q, T]``, True where attended.
        """
        lengths_B = torch.tensor(self.lengths, device=self._device)
        count, seen = len(self.lengths), max(self.lengths) + new_tokens
        if seen > self.max_columns:
            raise ValueError(f"a row would hold {seen} tokens, over its {self.max_columns}")
        while self.columns < seen:
            self.columns = min(2 * self.columns, self.max_columns)
        positions_BQ = lengths_B[:, None] + torch.arange(new_tokens, device=self._device)
        rows_B1 = torch.arange(count, device=self._device)[:, None]
        self.places = (rows_B1, positions_BQ, count, seen)
        mask_BQT = torch.arange(seen, device=self._device) <= positions_BQ[:, :, None]
        return positions_BQ, mask_BQT[:, None]

    def end(self, new_tokens: int) -> None:
        """The pass wrote its tokens: every row is that much longer."""
        self.lengths = [length + new_tokens for length in self.lengths]

    def append_from(self, source: KeyValueRows, source_row: int) -> None:
        """Take over another memory's row as a new last row."""
        length = source.lengths[source_row]
        while self.columns < length:
            self.columns = min(2 * self.columns, self.max_columns)
        row = len(self.lengths)
        for mine, theirs in zip(self.layers, source.layers, strict=True):
            mine.copy_row(theirs, source_row, row, length)
        self.lengths.append(length)

    def remove(self, row: int) -> None:
        """Drop a row; the last row moves into its place."""
        last = len(self.lengths) - 1
        if row != last:
            for layer in self.layers:
                layer.copy_row(layer, last, row, self.lengths[last])
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()


def _widened(held: torch.Tensor, columns: int) -> torch.Tensor:
    # Zeros, not empty memory: a masked NaN would still poison a row's attention sum.
    wider = held.new_zeros((held.shape[0], held.shape[1], columns, held.shape[3]))
    wider[:, :, : held.shape[2]] = held
    return wider
