#include "supervisor/batond/service_log.h"

#include <fcntl.h>
#include <syslog.h>
#include <systemd/sd-journal.h>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "supervisor/batond/open_within.h"

namespace baton {
namespace {

constexpr char kJournal[] = "journal";
constexpr mode_t kMode = 0640;

}  // namespace

absl::StatusOr<FileDescriptor> OpenServiceLog(const std::string& log, const std::string& service) {
  if (log == kJournal) {
    const int stream =
        sd_journal_stream_fd(absl::StrCat("baton-", service).c_str(), LOG_INFO, /*prefix=*/0);
    if (stream < 0) return ErrnoStatus(-stream, "log: systemd's journal (does it run here?)");
    return FileDescriptor(stream);
  }
  absl::StatusOr<FileDescriptor> file = OpenWithin(log, O_WRONLY | O_APPEND | O_CREAT, kMode);
  if (file.ok()) return file;
  return absl::Status(file.status().code(), absl::StrCat("log: ", file.status().message()));
}

}  // namespace baton
