// The part of `./run bench memory` that sends files of many sizes in many ways: how fast, and with
// how much registered memory.
#ifndef TESTS_BENCH_FILE_BENCH_H_
#define TESTS_BENCH_FILE_BENCH_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "tests/bench/baton_files.h"
#include "tests/bench/file_link.h"
#include "tests/bench/file_ways.h"
#include "tests/bench/suite.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::bench {

struct FileBenchOptions {
  verbs::testing::Fabric fabric;
  uint64_t largest_bytes = uint64_t{64} << 20;
  bool plain = true;      // over plain verbs, without Baton
  bool send_file = true;  // through Baton's FileSender
  bool regions = true;    // through Baton's registration on demand
  std::string binary_directory = {};
};

// Thread-compatible.
class FileBench {
 public:
  FileBench(const FileBenchOptions& options, Suite* suite);

  // REQUIRES: this process has one thread, and has opened no device.
  absl::Status Start();
  absl::Status Measure(Round& round);
  // Keeps connections alive. Call it now and then while others measure.
  absl::Status Turn() { return link_ == nullptr ? absl::OkStatus() : link_->Turn(); }
  void DumpLogs() const;

 private:
  struct Way {
    std::string name;
    std::function<absl::StatusOr<std::unique_ptr<FileWay>>(SentFile)> make;
  };
  // A way has sent so many bytes of one size, and has taken so long for it.
  struct Sent {
    std::unique_ptr<FileWay> way;
    double bytes = 0, took_ns = 0;
  };

  void AddPlainWays();
  void AddBatonWays(const char* kind, std::unique_ptr<BatonFiles>* files);
  void Compare();
  void Draw();
  absl::Status MeasureSize(uint64_t bytes, Round& round);
  absl::Status TakeTurn(uint64_t bytes, Sent* sent);

  const FileBenchOptions options_;
  Suite& suite_;
  std::vector<uint64_t> sizes_;
  std::vector<Way> ways_;
  FileDescriptor file_;  // files are parts of it, from its beginning on
  std::unique_ptr<FileLink> link_;
  std::unique_ptr<BatonFiles> brokered_, native_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_FILE_BENCH_H_
