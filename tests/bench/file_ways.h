// Ways of sending a file over plain verbs, which differ in the memory that they register.
#ifndef TESTS_BENCH_FILE_WAYS_H_
#define TESTS_BENCH_FILE_WAYS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/file_link.h"

namespace baton::bench {

// Thread-compatible. The link and the file outlive it.
class FileWay {
 public:
  virtual ~FileWay() = default;
  // Returns when all of the file is in the peer's memory.
  virtual absl::Status Send() = 0;
  // The sender's, at any one time, at most.
  virtual uint64_t registered_bytes() const = 0;
  // Sends it once more. Returns kDataLoss if the peer got something else than the file.
  virtual absl::Status SendAndCheck() = 0;
};

struct SentFile {
  int fd = -1;
  uint64_t bytes = 0;  // all of it
};

// One buffer as large as the file, into which it is read, and from which it is sent then. `checks`:
// its checksum is computed in between.
absl::StatusOr<std::unique_ptr<FileWay>> MakeStaticCopy(FileLink* link, SentFile file, bool checks);
// The file's own pages, mapped and registered. `keeps`: once; otherwise anew each time.
absl::StatusOr<std::unique_ptr<FileWay>> MakeInPlace(FileLink* link, SentFile file, bool keeps);
// So many buffers of so many pages. Pieces of the file are read into those that are not under way.
absl::StatusOr<std::unique_ptr<FileWay>> MakePipelined(FileLink* link, SentFile file,
                                                       uint32_t pipes, uint32_t pages);

}  // namespace baton::bench

#endif  // TESTS_BENCH_FILE_WAYS_H_
