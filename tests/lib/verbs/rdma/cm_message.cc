#include "tests/lib/verbs/rdma/cm_message.h"

#include <poll.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "lib/verbs/rdma/uverbs_command.h"

namespace baton::verbs::rdma {
namespace {

constexpr size_t kMostFiles = 64;

}  // namespace

// The old command, which the kernel takes by ioctl as well.
int RegisterRegion(int uverbs, uint32_t domain, const void* memory, uint32_t access,
                   Region* region) {
  ib_uverbs_reg_mr ask = {};
  ask.start = reinterpret_cast<uintptr_t>(memory);
  ask.length = region->bytes;
  ask.hca_va = region->address;
  ask.pd_handle = domain;
  ask.access_flags = access;
  ib_uverbs_reg_mr_resp answer = {};
  UverbsCommand<3> command(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
  command.Set(0, UVERBS_ATTR_WRITE_CMD, sizeof(uint64_t), IB_USER_VERBS_CMD_REG_MR);
  command.SetPlace(1, UVERBS_ATTR_CORE_IN, sizeof(ask), &ask);
  command.SetPlace(2, UVERBS_ATTR_CORE_OUT, sizeof(answer), &answer);
  const int error = command.Give(uverbs);
  if (error != 0) return error;
  region->handle = answer.mr_handle;
  region->local_key = answer.lkey;
  region->remote_key = answer.rkey;
  return 0;
}

bool SendMessage(int socket, const CmMessage& message, const std::vector<int>& files) {
  iovec data = {const_cast<CmMessage*>(&message), sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFiles * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!files.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), files.data(), files.size() * sizeof(int));
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL) == ssize_t{sizeof(message)};
}

bool ReceiveMessage(int socket, CmMessage* message, std::vector<FileDescriptor>* files,
                    int timeout_ms) {
  pollfd readable = {socket, POLLIN, 0};
  if (poll(&readable, 1, timeout_ms) != 1) return false;
  iovec data = {message, sizeof(*message)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFiles * sizeof(int))];
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != ssize_t{sizeof(*message)}) return false;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; CMSG_LEN(at) < part->cmsg_len; at += sizeof(int)) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(part) + at, sizeof(file));
      FileDescriptor owned(file);
      if (files != nullptr) files->push_back(std::move(owned));
    }
  }
  return true;
}

}  // namespace baton::verbs::rdma
