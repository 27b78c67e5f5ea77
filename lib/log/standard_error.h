// Where processes of Baton log: standard error, which they share, and which somebody else reads, or
// does not. Nobody waits for that reader: what he does not take is lost, and a line says so when he
// takes some again.
#ifndef LIB_LOG_STANDARD_ERROR_H_
#define LIB_LOG_STANDARD_ERROR_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "lib/base/file_descriptor.h"

namespace baton::log {

// Writes to a descriptor that others have, too, whose flags are therefore left as they are.
// Thread-compatible.
class PatientWriter {
 public:
  // `descriptor` stays the caller's, and open.
  explicit PatientWriter(int descriptor);

  // At once and whole, or not at all; at most PIPE_BUF bytes. A regular file is written as it takes
  // it: nothing else is possible. A reader that has gone is no signal.
  bool Write(std::string_view bytes);

 private:
  int descriptor_;
  bool is_socket_ = false;
  FileDescriptor own_;  // the same file, opened for us alone; none: it cannot be
};

enum class LogThread { kNone, kOwn };

// Makes standard error the default logger's. kOwn: a thread writes the lines, and the oldest of
// some thousands are lost when it falls behind. kNone: for processes that fork, and for those whose
// parent death signal hangs on a thread. `pattern`, of spdlog: empty, its own. SIGPIPE is ignored
// by the process from here on. Call it once, before other threads and before UseJson.
void LogToStandardError(const std::string& name, LogThread thread, const std::string& pattern = "");

// At the end of the process: what is still to be written, for at most some seconds; then SIGALRM
// ends it.
void EndLog();

}  // namespace baton::log

#endif  // LIB_LOG_STANDARD_ERROR_H_
