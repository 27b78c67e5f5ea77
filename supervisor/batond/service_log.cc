#include "supervisor/batond/service_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <syslog.h>
#include <systemd/sd-journal.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"

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
  // A FIFO that nobody reads is refused, and not waited for.
  FileDescriptor file(
      open(log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, kMode));
  if (!file) return ErrnoStatus(errno, absl::StrCat("log: ", log));
  struct stat status = {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("log: ", log, " is not a file; name one, or a path where none is yet"));
  }
  return file;
}

}  // namespace baton
