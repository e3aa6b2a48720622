"""ModelInfer with the stock client: answers, ids, versions."""

import numpy as np


def test_identity(served) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    result = served.infer("rows", x, request_id="a")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), x)
    assert result.get_response().id == "a"
