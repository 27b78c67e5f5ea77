#!/usr/bin/env python3
"""Sends back what it receives, across upgrades and crashes. echo.c is the same in C.

Needs python3-cffi, and libbaton-dev for the declarations.
"""
import re
import sys

import cffi

BYTES, WINDOW = 4096, 16


def declarations(path="/usr/include/baton/baton.h"):
    """What cffi reads of the header: neither preprocessor lines nor the braces of extern "C"."""
    with open(path, encoding="ascii") as header:
        text = re.sub(r"#ifdef __cplusplus.*?#endif", "", header.read(), flags=re.S)
    text = text.replace("\\\n", "")
    return re.sub(r"^#.*$", "", text, flags=re.M)


ffi = cffi.FFI()
ffi.cdef(declarations())
baton = ffi.dlopen("libbaton.so.0")


def buffer_of(connection, tag, length):
    """Each buffer belongs to one request at a time, which carries its number as the tag."""
    slot = baton.baton_connection_index(connection) * WINDOW + tag
    return ffi.new("struct baton_buffer *", {"offset": slot * BYTES, "length": length})


def receive(shard, connection, tag):
    if baton.baton_receive(shard, connection, buffer_of(connection, tag, BYTES), 1, tag) != 0:
        baton.baton_disconnect(shard, connection)


@ffi.callback("void(void *, struct baton_shard *, const struct baton_completion *)")
def on_completion(_, shard, done):
    connection = done.connection
    if done.kind == baton.BATON_CONNECT_REQUEST:
        for tag in range(WINDOW):
            receive(shard, connection, tag)
        baton.baton_accept(shard, connection, ffi.NULL, ffi.NULL, 0)
    elif done.status != baton.BATON_SUCCESS:
        pass
    elif done.kind == baton.BATON_RECEIVE:
        reply = buffer_of(connection, done.tag, done.byte_len)
        work = ffi.new("struct baton_send_work *", {"buffers": reply, "buffer_count": 1, "tag": done.tag})
        work.size = ffi.sizeof("struct baton_send_work")
        baton.baton_send(shard, connection, work)
    elif done.kind == baton.BATON_SEND:
        receive(shard, connection, done.tag)


def main():
    service = ffi.new("struct baton_service *")
    service.size = ffi.sizeof("struct baton_service")
    service.on_completion = on_completion
    texts = [ffi.new("char[]", text.encode()) for text in (sys.argv[1], "echo", "echo.py", "python")]
    options = ffi.new("struct baton_worker_options *", {"yield_microseconds": 100})
    options.size = ffi.sizeof("struct baton_worker_options")
    options.socket, options.service, options.name, options.version = texts
    worker = ffi.new("struct baton_worker **")
    code = baton.baton_attach(options, service, worker)
    if code == 0:
        code = baton.baton_listen(worker[0], b"0.0.0.0", 7471, ffi.NULL)
    if code == 0:
        code = baton.baton_run(worker[0])
    if code != 0:
        print("echo:", ffi.string(baton.baton_error()).decode(), file=sys.stderr)
    baton.baton_detach(worker[0])
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
