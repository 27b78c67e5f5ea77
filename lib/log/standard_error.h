// Baton's processes log to standard error, which they share and which another process may read.
// They do not wait for that reader: lines that it does not take are lost. With LogThread::kNone a
// line says so when it takes lines again.
#ifndef LIB_LOG_STANDARD_ERROR_H_
#define LIB_LOG_STANDARD_ERROR_H_

#include <string>
#include <string_view>

#include "lib/base/file_descriptor.h"

namespace baton::log {

// Writes to a descriptor that other processes have, too, and so leaves its flags as they are.
// Thread-compatible.
class PatientWriter {
 public:
  // The caller owns `descriptor`, and keeps it open longer than this.
  explicit PatientWriter(int descriptor);

  // Writes `bytes` (at most PIPE_BUF) at once and whole, and returns true; or writes none. A
  // regular file is the exception: it may take a part, or take its time. REQUIRES: SIGPIPE is
  // ignored.
  bool Write(std::string_view bytes);

 private:
  int descriptor_;
  bool is_socket_ = false;
  FileDescriptor own_;  // the same file, opened again for this object; none: not possible
};

enum class LogThread { kNone, kOwn };

// Makes the default logger write to standard error. kOwn: a thread writes the lines; when it falls
// some thousands behind, the oldest are lost. kNone is for processes that have one thread: keepers,
// those that fork, and those whose parent death signal depends on a thread. `pattern` is spdlog's;
// empty: its default. The process ignores SIGPIPE from now on. Call it once, before other threads
// start and before UseJson.
void LogToStandardError(const std::string& name, LogThread thread, const std::string& pattern = "");

// Call it at the end of the process. Writes the lines that still wait. If that takes more than some
// seconds, SIGALRM ends the process.
void EndLog();

}  // namespace baton::log

#endif  // LIB_LOG_STANDARD_ERROR_H_
