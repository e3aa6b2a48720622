"""The network behind mosec: raw bytes in, raw bytes out, batches as they come.

Arguments are mosec's own; MODEL names the file and DTYPE the type of its input.
"""

import os

import numpy as np
import onnxruntime
from mosec import Server, Worker


class Network(Worker):
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL"], options, providers=["CPUExecutionProvider"]
        )
        self.dtype = np.dtype(os.environ["DTYPE"])

    def deserialize(self, data):
        return np.frombuffer(data, self.dtype)

    def serialize(self, data):
        return data.tobytes()

    def forward(self, data):
        (answers,) = self.session.run(["OUTPUT"], {"INPUT": np.stack(data)})
        return list(answers)


if __name__ == "__main__":
    server = Server()
    server.append_worker(Network, num=1, max_batch_size=32, max_wait_time=1)
    server.run()
