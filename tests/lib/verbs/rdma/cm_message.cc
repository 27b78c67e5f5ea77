#include "tests/lib/verbs/rdma/cm_message.h"

#include <poll.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace baton::verbs::rdma {
namespace {

// ib_uverbs_ioctl_hdr and what follows it: its array has no size in C, and none in C++.
template <uint16_t kCount>
struct Command {
  Command(uint16_t object, uint16_t method) {
    ib_uverbs_ioctl_hdr fields = {};
    fields.length = sizeof(*this);
    fields.object_id = object;
    fields.method_id = method;
    fields.num_attrs = kCount;
    fields.driver_id = RDMA_DRIVER_RXE;  // the kernel refuses another device's
    std::memcpy(header, &fields, sizeof(fields));
  }
  void Set(int index, uint16_t id, uint16_t bytes, uint64_t data) {
    attributes[index].attr_id = id;
    attributes[index].len = bytes;
    attributes[index].flags = UVERBS_ATTR_F_MANDATORY;
    attributes[index].data = data;
  }
  void SetPlace(int index, uint16_t id, uint16_t bytes, const void* place) {
    Set(index, id, bytes, reinterpret_cast<uintptr_t>(place));
  }
  int Give(int uverbs) { return ioctl(uverbs, RDMA_VERBS_IOCTL, this) == 0 ? 0 : errno; }

  alignas(ib_uverbs_ioctl_hdr) uint8_t header[sizeof(ib_uverbs_ioctl_hdr)];
  ib_uverbs_attr attributes[kCount] = {};
};
static_assert(offsetof(ib_uverbs_ioctl_hdr, attrs) == sizeof(ib_uverbs_ioctl_hdr));

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
  Command<3> command(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
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

int QueryRegion(int uverbs, uint32_t handle, Region* region) {
  Command<5> command(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
  command.Set(0, UVERBS_ATTR_QUERY_MR_HANDLE, 0, handle);
  command.SetPlace(1, UVERBS_ATTR_QUERY_MR_RESP_LKEY, sizeof(uint32_t), &region->local_key);
  command.SetPlace(2, UVERBS_ATTR_QUERY_MR_RESP_RKEY, sizeof(uint32_t), &region->remote_key);
  command.SetPlace(3, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, sizeof(uint64_t), &region->bytes);
  command.SetPlace(4, UVERBS_ATTR_QUERY_MR_RESP_IOVA, sizeof(uint64_t), &region->address);
  return command.Give(uverbs);
}

int DestroyRegion(int uverbs, uint32_t handle) {
  Command<1> command(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
  command.Set(0, UVERBS_ATTR_DESTROY_MR_HANDLE, 0, handle);
  return command.Give(uverbs);
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
