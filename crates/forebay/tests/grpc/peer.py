"""A gRPC server, or a client that tries each kind of call, over TLS if CA is given:
peer.py serve PORT PIDFILE, peer.py call PORT [CA]. Its messages are bytes; peer.proto has the typed ones."""
import os
import sys
import threading
from concurrent import futures

import grpc


def fail(request, context):
    context.set_trailing_metadata((("x-why", "it was asked to"),))
    context.abort(grpc.StatusCode.NOT_FOUND, "not here")


def count(request, context):
    for number in range(int(request)):
        yield b"%d" % number


def add(requests, context):
    return b"%d" % sum(int(request) for request in requests)


def chat(requests, context):
    for request in requests:
        yield b"re: " + request


def back(requests, context):
    yield from requests


def serve(port, pid):
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Count": grpc.unary_stream_rpc_method_handler(count),
        "Add": grpc.stream_unary_rpc_method_handler(add),
        "Chat": grpc.stream_stream_rpc_method_handler(chat),
        "Back": grpc.stream_stream_rpc_method_handler(back),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Peer", handlers),))
    if server.add_insecure_port("127.0.0.1:%d" % port) == 0:
        sys.exit("port %d is in use" % port)
    server.start()
    with open(pid, "w") as file:
        file.write(str(os.getpid()))
    server.wait_for_termination()


def call(port, ca=None):
    address = "127.0.0.1:%d" % port
    if ca:
        with open(ca, "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
        options = [("grpc.ssl_target_name_override", "localhost")]
        channel = grpc.secure_channel(address, credentials, options)
    else:
        channel = grpc.insecure_channel(address)
    echo = channel.unary_unary("/test.Peer/Echo")
    for size in (0, 1, 1000, 1000000):
        assert echo(b"x" * size, timeout=30) == b"x" * size, size
    try:
        channel.unary_unary("/test.Peer/Fail")(b"", timeout=30)
        raise AssertionError("no error")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND, error
        assert error.details() == "not here", error
        assert ("x-why", "it was asked to") in [tuple(pair) for pair in error.trailing_metadata()]
    try:
        channel.unary_unary("/test.Peer/Nothing")(b"", timeout=30)
        raise AssertionError("no error")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    numbers = list(channel.unary_stream("/test.Peer/Count")(b"1000", timeout=30))
    assert numbers == [b"%d" % number for number in range(1000)], len(numbers)
    total = channel.stream_unary("/test.Peer/Add")((b"%d" % n for n in range(1000)), timeout=30)
    assert total == b"499500", total
    # Sends each message after the answer to the previous one.
    answered = threading.Semaphore(1)

    def messages():
        for number in range(50):
            assert answered.acquire(timeout=30)
            yield b"%d" % number

    answers = []
    for answer in channel.stream_stream("/test.Peer/Chat")(messages(), timeout=60):
        answers.append(answer)
        answered.release()
    assert answers == [b"re: %d" % number for number in range(50)], answers
    waiting = channel.stream_stream("/test.Peer/Chat")(iter([b"a"]), timeout=30)
    assert next(waiting) == b"re: a"
    waiting.cancel()
    with futures.ThreadPoolExecutor(max_workers=64) as pool:
        calls = [pool.submit(echo, b"%d" % n, timeout=60) for n in range(1000)]
        assert [one.result() for one in calls] == [b"%d" % n for n in range(1000)]
    print("all calls went well", flush=True)


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
