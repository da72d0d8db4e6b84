"""The metadata gateway: two gRPC services over a metadata store, their HTTP, and the processes that run them."""
