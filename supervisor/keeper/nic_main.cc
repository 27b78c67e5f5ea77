// baton-nic: the NIC of a native service on the soft device. It executes the queues of whoever is
// at the other ends of its sockets, and ends with the last of them.
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/realtime.h"
#include "lib/base/status_macros.h"
#include "lib/nic/nic.h"
#include "lib/nic/serve.h"
#include "lib/waiting/token_bucket.h"

namespace baton::nic {
namespace {

// A client that means harm can make complaints as fast as it sends messages.
constexpr double kComplaintsPerSecond = 10;

// At a real-time priority nobody else gets the processor meanwhile.
constexpr uint32_t kYieldMicroseconds = 100;
constexpr uint32_t kRealtimeYieldMicroseconds = 10;

// Clients choose what it executes. Of what batond's user may do it needs one thing: to listen at
// ports below 1024.
absl::Status GiveUpRights() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return ErrnoStatus(errno, "capget");
  const uint32_t kept = CAP_TO_MASK(CAP_NET_BIND_SERVICE);
  for (__user_cap_data_struct& set : sets) {
    const uint32_t left = &set == &sets[CAP_TO_INDEX(CAP_NET_BIND_SERVICE)] ? kept : 0;
    set.effective &= left;
    set.permitted &= left;
    set.inheritable = 0;
  }
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) {
    return ErrnoStatus(errno, "clearing the ambient capabilities");
  }
  if (syscall(SYS_capset, &header, sets) != 0) return ErrnoStatus(errno, "capset");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return ErrnoStatus(errno, "no_new_privs");
  return absl::OkStatus();
}

absl::Status Run(const std::vector<int>& clients, int realtime_priority) {
  if (realtime_priority > 0) BATON_RETURN_IF_ERROR(UseRealtimePriority(realtime_priority));
  BATON_RETURN_IF_ERROR(GiveUpRights());
  TokenBucket budget(kComplaintsPerSecond, kComplaintsPerSecond, MonotonicNanoseconds());
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Nic> nic,
                         Nic::Make({}, [&budget](const std::string& what) {
                           if (!budget.TryTake(MonotonicNanoseconds())) return;
                           std::fprintf(stderr, "baton-nic: %s\n", what.c_str());
                         }));
  for (const int client : clients) BATON_RETURN_IF_ERROR(nic->Add(FileDescriptor(client)));
  return Serve(nic.get(), realtime_priority > 0 ? kRealtimeYieldMicroseconds : kYieldMicroseconds);
}

}  // namespace
}  // namespace baton::nic

int main(int argc, char** argv) {
  CLI::App app("Is a NIC in software: executes the queues of baton-keeper, which starts it.",
               "baton-nic");
  std::vector<int> clients;
  app.add_option("--client-fd", clients,
                 "descriptor of a socket of whole messages, with a client at its other end")
      ->required()
      ->check(CLI::Range(3, 1 << 20));
  int realtime_priority = 0;
  app.add_option("--realtime-priority", realtime_priority,
                 "1 to 99; workers that have one and wait would starve a NIC without; 0: none [0]")
      ->check(CLI::Range(0, 99));
  CLI11_PARSE(app, argc, argv);
  (void)std::signal(SIGPIPE, SIG_IGN);
  const absl::Status status = baton::nic::Run(clients, realtime_priority);
  if (status.ok()) return 0;
  std::fprintf(stderr, "baton-nic: %s\n", std::string(status.message()).c_str());
  return 1;
}
