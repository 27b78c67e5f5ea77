#include "supervisor/driver/workers/held_workers.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/channel/message_channel.h"

namespace baton::driver_process {
namespace {

// So many slots in one entry, which is what one fork has to write.
constexpr uint32_t kPerEntry = kMaxFrameDescriptors;

std::string NameOf(uint32_t slot) { return absl::StrCat("workers", slot / kPerEntry); }

}  // namespace

void HeldWorkers::Put(uint32_t slot, int pidfd, HeldDescriptors::Done done) {
  processes_[slot].Reset(fcntl(pidfd, F_DUPFD_CLOEXEC, 0));
  if (!processes_[slot]) return done(ErrnoStatus(errno, "a copy of a pidfd (see RLIMIT_NOFILE)"));
  const size_t first = slot / kPerEntry * kPerEntry;
  const size_t end = std::min<size_t>(first + kPerEntry, processes_.size());
  std::vector<int> all;
  for (size_t i = first; i < end; ++i) {
    all.push_back(processes_[i] ? processes_[i].get() : nobody_);
  }
  held_->PutSoon(NameOf(slot), all, std::move(done));
}

absl::StatusOr<std::vector<FileDescriptor>> HeldWorkers::Get(HeldDescriptors* held,
                                                             uint32_t slots) {
  std::vector<FileDescriptor> processes(slots);
  for (uint32_t first = 0; first < slots; first += kPerEntry) {
    BATON_ASSIGN_OR_RETURN(std::vector<FileDescriptor> some, held->Get(NameOf(first)));
    for (size_t i = 0; i < some.size() && first + i < slots; ++i) {
      processes[first + i] = std::move(some[i]);
    }
  }
  return processes;
}

}  // namespace baton::driver_process
