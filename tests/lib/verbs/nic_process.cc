#include "tests/lib/verbs/nic_process.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/nic.h"
#include "lib/verbs/soft/soft_device.h"

namespace baton::verbs::testing {
namespace {

constexpr uint32_t kYieldMicroseconds = 50;
constexpr int kMostDescriptors = 1024;

// Descriptors of the tests would keep their other ends open.
[[noreturn]] void BeNic(int objects, int ids, const soft::SoftDeviceOptions& options, bool tied) {
  if (tied) prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = STDERR_FILENO + 1; fd < kMostDescriptors; ++fd) {
    if (fd != objects && fd != ids) close(fd);
  }
  auto nic = nic::Nic::Make(options, [](const std::string& what) {
    std::fprintf(stderr, "the NIC complains: %s\n", what.c_str());
  });
  BATON_CHECK(nic.ok());
  BATON_CHECK((*nic)->Add(FileDescriptor(objects)).ok());
  BATON_CHECK((*nic)->Add(FileDescriptor(ids)).ok());
  _exit(nic::Serve(nic->get(), kYieldMicroseconds).ok() ? 0 : 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenWithNic(pid_t* pid,
                                                    const soft::SoftDeviceOptions& options,
                                                    bool tied) {
  int objects[2], ids[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, objects) == 0);
  BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ids) == 0);
  const pid_t child = fork();
  BATON_CHECK(child >= 0);
  if (child == 0) BeNic(objects[1], ids[1], options, tied);
  if (pid != nullptr) *pid = child;
  close(objects[1]);
  close(ids[1]);
  return soft::OpenSoftDevice(FileDescriptor(objects[0]), FileDescriptor(ids[0]));
}

}  // namespace baton::verbs::testing
