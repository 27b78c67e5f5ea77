// The commands of /dev/infiniband/rdma_cm, as the kernel takes them from write(2).
#ifndef LIB_VERBS_RDMA_CM_COMMAND_H_
#define LIB_VERBS_RDMA_CM_COMMAND_H_

#include <rdma/rdma_user_cm.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace baton::verbs::rdma {

inline constexpr char kCmDevice[] = "/dev/infiniband/rdma_cm";

// Writes a command (RDMA_USER_CM_CMD_*) to `file`, with its body. Returns 0 or an errno. The kernel
// takes a command whole or not at all.
template <typename Body>
int GiveCommand(int file, uint32_t command, const Body& body, size_t answer_bytes = 0) {
  struct {
    rdma_ucm_cmd_hdr header = {};
    Body body = {};
  } message;
  static_assert(sizeof(message) == sizeof(rdma_ucm_cmd_hdr) + sizeof(Body));
  message.header.cmd = command;
  message.header.in = sizeof(Body);
  message.header.out = static_cast<uint16_t>(answer_bytes);
  message.body = body;
  return write(file, &message, sizeof(message)) == ssize_t{sizeof(message)} ? 0 : errno;
}

// Does the same for a command that the kernel answers by filling `answer`.
template <typename Answer, typename Body>
int AskCommand(int file, uint32_t command, Body body, Answer* answer) {
  body.response = reinterpret_cast<uintptr_t>(answer);
  return GiveCommand(file, command, body, sizeof(*answer));
}

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_CM_COMMAND_H_
