"""Arrays that another party has sent, as bytes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from coterie.protocol.arrays import words
from coterie.protocol.errors import PeerError


@pytest.mark.parametrize(("kind", "of"), [("<u4", np.uint32), ("<u8", np.uint64)])
def test_words_have_the_shape_that_is_expected(kind: Literal["<u4", "<u8"], of: type) -> None:
    sent = np.arange(6, dtype=of).reshape(2, 3)
    np.testing.assert_array_equal(words(memoryview(sent.tobytes()), kind, 2, 3), sent)
    for data in (b"", sent.tobytes()[:-1], sent.tobytes() + b"\0"):
        with pytest.raises(PeerError, match=f"{len(data)} bytes where .2, 3. words were expected"):
            words(data, kind, 2, 3)
