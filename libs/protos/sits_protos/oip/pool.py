"""Descriptor pool that holds `package inference`, apart from the default one."""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
