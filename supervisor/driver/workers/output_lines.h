// Copies what workers print to the log. The copied lines are marked, and bounded in length and
// number.
#ifndef SUPERVISOR_DRIVER_WORKERS_OUTPUT_LINES_H_
#define SUPERVISOR_DRIVER_WORKERS_OUTPUT_LINES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/token_bucket.h"

namespace baton::driver_process {

// The workers of a native service share one pipe. kNativeOutput begins their lines.
inline constexpr char kNativeOutput[] = "workers";

// Makes a pipe whose writing end becomes a program's standard error. Reading does not block.
absl::StatusOr<Pipe> MakeOutputPipe();

// Splits bytes that anybody may have written into lines of the log. Thread-compatible.
class OutputLines {
 public:
  static constexpr char kKind[] = "worker_output";  // of the lines in the log
  static constexpr size_t kMaxLineBytes = 1024;     // a longer line is split
  static constexpr uint32_t kBurst = 1000;          // lines at once
  static constexpr uint32_t kPerSecond = 100;       // lines after that

  // `whose`: begins each line.
  explicit OutputLines(std::string whose);

  void Add(std::string_view bytes, uint64_t now_ns);
  // Called when nothing comes any more. Writes the unfinished line, and how many lines the log
  // lacks.
  void End(uint64_t now_ns);

  // Reads once, at most kReadBytes. Returns false if there will be nothing more.
  bool ReadSome(int fd, uint64_t now_ns);
  static constexpr size_t kReadBytes = 16 << 10;
  bool read_all() const { return read_all_; }  // the last ReadSome() left nothing

 private:
  void WriteLine(std::string_view line, uint64_t now_ns);
  void TellLeftOut();

  const std::string whose_;
  TokenBucket bucket_;
  std::string line_;  // unfinished
  uint64_t left_out_ = 0;
  std::vector<char> buffer_;
  bool read_all_ = true;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_OUTPUT_LINES_H_
