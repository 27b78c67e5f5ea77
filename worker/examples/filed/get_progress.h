// Shows how far a download is: one line that is drawn again and again on a terminal, a line from
// time to time elsewhere.
#ifndef WORKER_EXAMPLES_FILED_GET_PROGRESS_H_
#define WORKER_EXAMPLES_FILED_GET_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "worker/examples/filed/download.h"

namespace baton::filed {

// Returns "1023 B", "1.0 KiB", "17.5 GiB".
std::string FormatBytes(uint64_t bytes);

// Returns one line of at most `columns` characters, without an end of line. Control characters of
// `path` are not in it.
std::string ProgressLine(const Totals& totals, double seconds, std::string_view path,
                         uint32_t columns);

// Thread-compatible. Nobody else writes to the descriptor while the line is shown: call Clear()
// before.
class GetProgress {
 public:
  // `fd` is not owned. `quiet`: nothing is shown.
  GetProgress(int fd, bool quiet);
  ~GetProgress() { Clear(); }
  GetProgress(const GetProgress&) = delete;
  GetProgress& operator=(const GetProgress&) = delete;

  // Shows it if the last time is long enough ago.
  void Update(const Totals& totals, std::string_view path);
  // Removes the line from a terminal.
  void Clear();
  double seconds() const;  // since this was made

 private:
  using Clock = std::chrono::steady_clock;

  const int fd_;
  const bool quiet_, terminal_;
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point shown_ = begun_;
  bool drawn_ = false;
};

}  // namespace baton::filed

#endif  // WORKER_EXAMPLES_FILED_GET_PROGRESS_H_
