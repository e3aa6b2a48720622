"""Ray Serve pickles messages by the module that their descriptor names: this one."""

from tritonclient.grpc.service_pb2 import *  # noqa: F403
