#include "supervisor/driver/held_logs.h"

#include <sys/stat.h>

#include <cerrno>
#include <vector>

#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton::driver_process {
namespace {

constexpr char kLogs[] = "logs";      // of the driver of today, or of who has just died
constexpr char kFormer[] = "former";  // of the one that died last

absl::StatusOr<uint64_t> BytesOf(const std::vector<int>& files) {
  uint64_t bytes = 0;
  for (const int file : files) {
    struct stat info = {};
    if (fstat(file, &info) != 0) return ErrnoStatus(errno, "fstat of held logs");
    bytes += static_cast<uint64_t>(info.st_size);
  }
  return bytes;
}

absl::Status DropIfThere(HeldDescriptors* held, const char* name) {
  const absl::Status status = held->Drop(name);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

}  // namespace

absl::Status KeepFormerLogs(HeldDescriptors* held) {
  BATON_ASSIGN_OR_RETURN(const std::vector<FileDescriptor> logs, held->Get(kLogs));
  if (logs.empty()) return absl::OkStatus();  // who died had made none
  std::vector<int> files;
  for (const FileDescriptor& file : logs) files.push_back(file.get());
  BATON_ASSIGN_OR_RETURN(const uint64_t bytes, BytesOf(files));
  if (bytes <= kMaxFormerLogBytes) {
    BATON_RETURN_IF_ERROR(held->Put(kFormer, files));
  } else {
    BATON_RETURN_IF_ERROR(DropIfThere(held, kFormer));
  }
  return held->Drop(kLogs);
}

absl::Status HoldLogs(HeldDescriptors* held, const arena::Arena& arena) {
  return held->Put(kLogs, {arena.worker_log_fd(), arena.driver_log_fd(), arena.recovery_fd()});
}

}  // namespace baton::driver_process
