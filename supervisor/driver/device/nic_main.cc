// baton-nic: the NIC of a service on the soft device. It executes the queues of the clients at the
// other ends of its sockets, and ends with the last client.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "lib/base/token_bucket.h"
#include "lib/nic/nic.h"
#include "supervisor/driver/device/soft_faults.h"
#include "supervisor/driver/native/lifeline.h"
#include "supervisor/driver/workers/confine.h"

namespace baton::nic {
namespace {

// A hostile client can cause complaints as fast as it sends messages.
constexpr double kComplaintsPerSecond = 10;

// How long the NIC yields before it sleeps, where the service does not say. Its clients need the
// processor to make the next request (soft_nic.md, "Waiting").
constexpr uint32_t kYieldMicroseconds = 10;

// The NIC gives up its rights, because clients choose what it executes. The kernel kills it with
// the last process that drives the service, even if it hangs, because the next one's NIC listens at
// the same ports.
absl::Status ConfineToDriver(const driver_process::Identity& identity, int lifeline) {
  BATON_ASSIGN_OR_RETURN(FileDescriptor own, driver_process::OpenOwnEnd(lifeline));
  (void)close(lifeline);
  BATON_RETURN_IF_ERROR(driver_process::Confine(identity));
  // Stays open as long as the process lives.
  return driver_process::TieToLifeline(own.Release());
}

absl::Status Run(const std::vector<int>& clients, const driver_process::Identity& identity,
                 const std::string& faults, uint32_t yield_microseconds, int lifeline) {
  const int realtime_priority = identity.realtime_priority;
  if (realtime_priority > 0) BATON_RETURN_IF_ERROR(UseRealtimePriority(realtime_priority));
  BATON_RETURN_IF_ERROR(ConfineToDriver(identity, lifeline));
  verbs::soft::SoftDeviceOptions options;
  BATON_ASSIGN_OR_RETURN(options.faults, driver_process::FaultsFromText(faults));
  TokenBucket budget(kComplaintsPerSecond, kComplaintsPerSecond, MonotonicNanoseconds());
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Nic> nic,
                         Nic::Make(options, [&budget](const std::string& what) {
                           if (!budget.TryTake(MonotonicNanoseconds())) return;
                           std::fprintf(stderr, "baton-nic: %s\n", what.c_str());
                         }));
  for (const int client : clients) BATON_RETURN_IF_ERROR(nic->Add(FileDescriptor(client)));
  return Serve(nic.get(), yield_microseconds);
}

}  // namespace
}  // namespace baton::nic

int main(int argc, char** argv) {
  // The driver may execute this program by a descriptor, whose number would be the process's name.
  prctl(PR_SET_NAME, "baton-nic");
  CLI::App app("Is a NIC in software: executes the queues of a service, whose driver starts it.",
               "baton-nic");
  std::vector<int> clients;
  app.add_option("--client-fd", clients,
                 "descriptor of a socket of whole messages, with a client at its other end")
      ->required()
      ->check(CLI::Range(3, 1 << 20));
  int lifeline = -1;
  app.add_option("--lifeline-fd", lifeline,
                 "reading end of a pipe: the NIC is killed when nobody has the writing end")
      ->required()
      ->check(CLI::Range(3, 1 << 20));
  baton::driver_process::Identity identity;
  identity.may_listen = true;
  app.add_option("--uid", identity.uid, "user that it becomes [who starts it]");
  app.add_option("--gid", identity.gid, "group that it becomes [who starts it]");
  app.add_option("--realtime-priority", identity.realtime_priority,
                 "1 to 99; workers that have one and wait would starve a NIC without; 0: none [0]")
      ->check(CLI::Range(0, 99));
  std::string faults;
  app.add_option("--faults", faults, "FaultPlan that it injects, in protobuf text format [none]");
  uint32_t yield_microseconds = baton::nic::kYieldMicroseconds;
  app.add_option("--yield-microseconds", yield_microseconds, "before it sleeps [10]");
  CLI11_PARSE(app, argc, argv);
  (void)std::signal(SIGPIPE, SIG_IGN);
  const absl::Status status =
      baton::nic::Run(clients, identity, faults, yield_microseconds, lifeline);
  if (status.ok()) return 0;
  std::fprintf(stderr, "baton-nic: %s\n", std::string(status.message()).c_str());
  return 1;
}
