#include "supervisor/keeper/nic_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/program_start.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/keeper/spawn_plan.h"

namespace baton::keeper {
namespace {

// Descriptors of baton-nic.
constexpr int kObjects = 3;
constexpr int kIds = 4;

struct Socket {
  FileDescriptor ours;
  FileDescriptor theirs;
};

absl::StatusOr<Socket> MakeSocket() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "a socket to the NIC (see RLIMIT_NOFILE)");
  }
  Socket made = {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  BATON_ASSIGN_OR_RETURN(made.theirs, CopyAbove(made.theirs.get(), kIds));
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<verbs::Device>> StartNic(const Identity& identity) {
  BATON_ASSIGN_OR_RETURN(Socket objects, MakeSocket());
  BATON_ASSIGN_OR_RETURN(Socket ids, MakeSocket());
  // The keeper's has its configuration.
  const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) return ErrnoStatus(errno, "/dev/null");
  SpawnPlan plan;
  plan.Give(nothing.get(), STDIN_FILENO);
  plan.Give(objects.theirs.get(), kObjects);
  plan.Give(ids.theirs.get(), kIds);
  plan.CloseFrom(kIds + 1);
  const std::string program = OwnDirectory() + "/baton-nic";
  std::vector<std::string> words = {"--client-fd", absl::StrCat(kObjects), absl::StrCat(kIds),
                                    "--realtime-priority",
                                    absl::StrCat(identity.realtime_priority)};
  if (identity.uid) words.insert(words.end(), {"--uid", absl::StrCat(*identity.uid)});
  if (identity.gid) words.insert(words.end(), {"--gid", absl::StrCat(*identity.gid)});
  const absl::StatusOr<pid_t> nic = plan.Spawn(program, words);
  BATON_RETURN_IF_ERROR(nic.status());
  objects.theirs.Reset();
  ids.theirs.Reset();
  return verbs::soft::OpenSoftDevice(std::move(objects.ours), std::move(ids.ours));
}

}  // namespace baton::keeper
