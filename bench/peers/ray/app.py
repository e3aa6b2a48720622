"""The network behind Ray Serve's gRPC proxy: `python app.py GRPC_PORT HTTP_PORT MODEL`."""

import signal
import sys
import threading

import numpy as np
import onnxruntime
import ray
from grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from ray import serve

ADD_TO_SERVER = "tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"
DTYPES = {"FP32": np.float32, "INT64": np.int64}


@serve.deployment(num_replicas=1, max_ongoing_requests=512, ray_actor_options={"num_cpus": 1})
class Network:
    def __init__(self, file: str):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            file, options, providers=["CPUExecutionProvider"]
        )

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def run(self, rows: list) -> list:
        (answers,) = self.session.run(["OUTPUT"], {"INPUT": np.concatenate(rows)})
        return [answers[i : i + 1] for i in range(len(rows))]

    async def ModelInfer(self, request: ModelInferRequest) -> ModelInferResponse:
        tensor = request.inputs[0]
        row = np.frombuffer(request.raw_input_contents[0], DTYPES[tensor.datatype])
        answer = await self.run(row.reshape(tensor.shape))
        response = ModelInferResponse(model_name=request.model_name, model_version="1")
        response.outputs.add(name="OUTPUT", datatype="FP32", shape=answer.shape)
        response.raw_output_contents.append(answer.tobytes())
        return response


def main() -> None:
    grpc_port, http_port, file = sys.argv[1:]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(http_port)},
        grpc_options={"port": int(grpc_port), "grpc_servicer_functions": [ADD_TO_SERVER]},
    )
    serve.run(Network.bind(file), name="network", route_prefix="/")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopped.set())
    stopped.wait()
    ray.shutdown()


if __name__ == "__main__":
    main()
