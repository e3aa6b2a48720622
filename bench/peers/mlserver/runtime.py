"""The network as a custom runtime of MLServer."""

import os

import numpy as np
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Network(MLModel):
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL"], options, providers=["CPUExecutionProvider"]
        )
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        (answers,) = self.session.run(["OUTPUT"], {"INPUT": np.ascontiguousarray(rows)})
        output = NumpyCodec.encode_output("OUTPUT", answers)
        return InferenceResponse(model_name=self.name, outputs=[output])
