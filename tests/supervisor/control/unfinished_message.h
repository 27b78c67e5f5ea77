// A client of gRPC that never finishes its message, below gRPC: HTTP/2 frames of its own making.
#ifndef TESTS_SUPERVISOR_CONTROL_UNFINISHED_MESSAGE_H_
#define TESTS_SUPERVISOR_CONTROL_UNFINISHED_MESSAGE_H_

#include <cstdint>
#include <string>

namespace baton {

// Opens `streams` calls of `method` on one connection to `socket_path`, announces a message of
// `announced` bytes on each, and sends all but the last byte of each, as far as the server takes
// them, until it has ended every stream or has them all. Returns the most bytes of messages that it
// had taken of streams that it had not ended; -1: it could not be talked to. Uses nothing of
// gRPC's: may be called in a forked child.
int64_t SendUnfinished(const std::string& socket_path, const std::string& method, int streams,
                       uint32_t announced);

}  // namespace baton

#endif  // TESTS_SUPERVISOR_CONTROL_UNFINISHED_MESSAGE_H_
