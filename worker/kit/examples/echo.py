#!/usr/bin/env python3
"""Sends back what it receives, across upgrades and crashes. echo.c is the same in C.

The connections of a shard share its receives (shared_receive_queue_depth of the service): one that
is idle needs none. Needs python3-cffi, and libbaton-dev for the declarations.
"""
import re
import sys

import cffi

BYTES = 1024


def declarations(path="/usr/include/baton/baton.h"):
    """What cffi reads of the header: neither preprocessor lines nor the braces of extern "C"."""
    with open(path, encoding="ascii") as header:
        text = re.sub(r"#ifdef __cplusplus.*?#endif", "", header.read(), flags=re.S)
    text = text.replace("\\\n", "")
    return re.sub(r"^#.*$", "", text, flags=re.M)


ffi = cffi.FFI()
ffi.cdef(declarations())
baton = ffi.dlopen("libbaton.so.0")


capacity = ffi.new("struct baton_capacity *")
capacity.size = ffi.sizeof("struct baton_capacity")
buffers = []  # the memory, once the worker is attached


def buffer(place, length):
    return ffi.new("struct baton_buffer *", {"offset": place * BYTES, "length": length})


def request_buffer(shard, slot, length):
    """The buffers of a shard's receives, one for each slot, are behind those of all answers."""
    answers = capacity.connections * 2 * capacity.send_queue_depth
    receives = baton.baton_shard_index(shard) * 2 * capacity.shared_receive_queue_depth
    return buffer(answers + receives + slot, length)


def answer_buffer(connection, length):
    """Of the next send. No other that is outstanding has it."""
    sends = 2 * capacity.send_queue_depth
    next_send = baton.baton_connection_next_send(connection) % sends
    return buffer(baton.baton_connection_index(connection) * sends + next_send, length)


@ffi.callback("int(void *, struct baton_shard *)")
def post_receives(_, shard):
    """Receives outlive workers: the first owner posts all, each owner one for each that completed."""
    code = 0
    while code == 0 and baton.baton_shared_receive_room(shard) > 0:
        slot = baton.baton_next_shared_receive(shard)
        code = baton.baton_receive_shared(shard, request_buffer(shard, slot, BYTES), 1, 0)
    return code


def answer(shard, done):
    request = request_buffer(shard, done.sequence, done.byte_len)
    reply = answer_buffer(done.connection, done.byte_len)
    ffi.memmove(buffers[0] + reply.offset, buffers[0] + request.offset, request.length)
    work = ffi.new("struct baton_send_work *", {"buffers": reply, "buffer_count": 1})
    work.size = ffi.sizeof("struct baton_send_work")
    return baton.baton_send(shard, done.connection, work)


@ffi.callback("void(void *, struct baton_shard *, const struct baton_completion *)")
def on_completion(context, shard, done):
    if done.kind == baton.BATON_CONNECT_REQUEST:
        baton.baton_accept(shard, done.connection, ffi.NULL, ffi.NULL, 0)
    elif done.kind == baton.BATON_RECEIVE:
        if done.status == baton.BATON_SUCCESS and answer(shard, done) != 0:
            baton.baton_disconnect(shard, done.connection)
        post_receives(context, shard)


def main():
    service = ffi.new("struct baton_service *")
    service.size = ffi.sizeof("struct baton_service")
    service.on_adopt = post_receives
    service.on_completion = on_completion
    texts = [ffi.new("char[]", text.encode()) for text in (sys.argv[1], "echo", "echo.py", "python")]
    options = ffi.new("struct baton_worker_options *", {"yield_microseconds": 100})
    options.size = ffi.sizeof("struct baton_worker_options")
    options.socket, options.service, options.name, options.version = texts
    worker = ffi.new("struct baton_worker **")
    code = baton.baton_attach(options, service, worker)
    if code == 0:
        baton.baton_get_capacity(worker[0], capacity)
        if capacity.shared_receive_queue_depth == 0:
            print("echo: the service needs a shared_receive_queue_depth", file=sys.stderr)
            return 1
        buffers.append(baton.baton_buffers(worker[0], ffi.new("size_t *")))
        code = baton.baton_listen(worker[0], b"0.0.0.0", 7471, ffi.NULL)
    if code == 0:
        code = baton.baton_run(worker[0])
    if code != 0:
        print("echo:", ffi.string(baton.baton_error()).decode(), file=sys.stderr)
    baton.baton_detach(worker[0])
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
