#include "supervisor/driver/device/nic_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/layout.h"
#include "lib/base/status.h"
#include "lib/nic/control_format.h"
#include "lib/nic/control_socket.h"
#include "lib/nic/limits.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/device/soft_faults.h"
#include "supervisor/driver/workers/spawn_plan.h"

namespace baton::driver_process {
namespace {

// Descriptors of baton-nic: the device's two files, one for questions about signs of life, and its
// end of the lifeline.
constexpr int kObjects = 3;
constexpr int kIds = 4;
constexpr int kSigns = 5;
constexpr int kLifeline = 6;

// The NIC maps the whole memfd of each region, which a worker chooses. Room for the service's own
// memory and for the queues of new connections is left however large those are.
constexpr uint64_t kOwnFiles = 256;
static_assert(nic::kMaxFiles >= kOwnFiles + arena::kRegions);
static_assert(nic::kMaxFileBytes / arena::kMaxBufferBytes >= arena::kRegions + 16);

absl::StatusOr<SocketPair> MakeSocket() {
  BATON_ASSIGN_OR_RETURN(SocketPair made, MakeSocketPair(SOCK_SEQPACKET));
  BATON_ASSIGN_OR_RETURN(made.theirs, CopyAbove(made.theirs.get(), kLifeline));
  return made;
}

std::vector<std::string> ArgumentsFor(const NicPlan& plan) {
  const Identity& identity = plan.identity;
  std::vector<std::string> words = {
      "--client-fd",         absl::StrCat(kObjects),
      absl::StrCat(kIds),    absl::StrCat(kSigns),
      "--lifeline-fd",       absl::StrCat(kLifeline),
      "--realtime-priority", absl::StrCat(identity.realtime_priority)};
  if (identity.uid) words.insert(words.end(), {"--uid", absl::StrCat(*identity.uid)});
  if (identity.gid) words.insert(words.end(), {"--gid", absl::StrCat(*identity.gid)});
  if (plan.yield_microseconds != 0) {
    words.insert(words.end(), {"--yield-microseconds", absl::StrCat(plan.yield_microseconds)});
  }
  if (plan.faults.rules_size() > 0) {
    words.insert(words.end(), {"--faults", FaultsToText(plan.faults)});
  }
  return words;
}

// Any call would do. NextEvent takes no event from anybody, because no connection is made through
// this file. The NIC answers in order, and the driver asks one question at a time.
bool Ask(const nic::CallSocket& calls) {
  nic::control::NextEvent question;
  question.header = {static_cast<uint16_t>(nic::control::NextEvent::kOp), sizeof(question), 0};
  return nic::SendMessage(calls.calls(), question);
}

}  // namespace

bool NicProcess::Beat() {
  nic::ControlMessage answer;
  if (asked_ && nic::Receive(calls_.calls(), &answer) == nic::Received::kNothing) {
    if (++silent_beats_ != kSilentBeats) return false;
    (void)SendSignal(pidfd_.get(), SIGKILL);
    return true;
  }
  silent_beats_ = 0;
  asked_ = Ask(calls_);
  return false;
}

absl::StatusOr<StartedNic> StartNic(const NicPlan& plan) {
  BATON_ASSIGN_OR_RETURN(SocketPair objects, MakeSocket());
  BATON_ASSIGN_OR_RETURN(SocketPair ids, MakeSocket());
  BATON_ASSIGN_OR_RETURN(SocketPair signs, MakeSocket());
  BATON_ASSIGN_OR_RETURN(Pipe lifeline, MakePipe());
  BATON_ASSIGN_OR_RETURN(lifeline.reading, CopyAbove(lifeline.reading.get(), kLifeline));
  // The driver's own standard input has its configuration.
  const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) return ErrnoStatus(errno, "/dev/null");
  SpawnPlan spawn;
  spawn.Give(nothing.get(), STDIN_FILENO);
  spawn.Give(objects.theirs.get(), kObjects);
  spawn.Give(ids.theirs.get(), kIds);
  spawn.Give(signs.theirs.get(), kSigns);
  spawn.Give(lifeline.reading.get(), kLifeline);
  spawn.CloseFrom(kLifeline + 1);
  BATON_ASSIGN_OR_RETURN(const pid_t pid, spawn.Spawn(plan.program, ArgumentsFor(plan)));
  BATON_ASSIGN_OR_RETURN(FileDescriptor pidfd, OpenPidfd(pid));
  for (SocketPair* const socket : {&objects, &ids, &signs}) socket->theirs.Reset();
  StartedNic started;
  BATON_ASSIGN_OR_RETURN(
      started.device,
      verbs::soft::OpenSoftDevice(std::move(objects.ours), std::move(ids.ours), plan.forks));
  BATON_ASSIGN_OR_RETURN(
      nic::CallSocket calls,
      nic::CallSocket::Open(std::move(signs.ours), nic::control::Op::kOpenIds, {}));
  started.process = std::make_unique<NicProcess>(pid, std::move(pidfd), std::move(lifeline.writing),
                                                 std::move(calls));
  return started;
}

}  // namespace baton::driver_process
