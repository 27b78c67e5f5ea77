// A worker of Baton that sends files, through FileSender or from regions, and its peer, which is
// here.
#ifndef TESTS_BENCH_BATON_FILES_H_
#define TESTS_BENCH_BATON_FILES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/stream/file_pieces.h"
#include "lib/stream/peer_stream.h"
#include "lib/verbs/verbs.h"
#include "tests/bench/bench_file.h"
#include "tests/bench/file_link.h"
#include "tests/bench/file_ways.h"
#include "tests/bench/server.h"
#include "tests/lib/verbs/fabric.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::bench {

// Thread-compatible.
class BatonFiles {
 public:
  // `side`: kBrokered or kNative. Starts a Baton with bench-file-worker, and connects to it.
  static absl::StatusOr<std::unique_ptr<BatonFiles>> Start(SideName side,
                                                           const verbs::testing::Fabric& fabric,
                                                           const std::string& binary_directory);

  // Asks for a file of `bytes`, and returns when all of it has come. `checks`: compares it.
  absl::Status Fetch(SendWay way, uint64_t bytes, bool checks);
  // All that the service has registered for it.
  static uint64_t RegisteredFor(SendWay way, uint64_t bytes);

  void DumpLogs() const { server_->DumpLogs(); }

 private:
  BatonFiles(verbs::testing::Fabric fabric, std::unique_ptr<Server> server,
             examples::SharedMemory memory)
      : fabric_(std::move(fabric)), server_(std::move(server)), memory_(std::move(memory)) {}
  absl::Status Connect();
  absl::Status Take(const FileRequest& request, absl::Span<const uint8_t> message);
  absl::Status Check(const FileRequest& request, absl::Span<const uint8_t> message);

  const verbs::testing::Fabric fabric_;
  const std::unique_ptr<Server> server_;
  examples::SharedMemory memory_;  // the ring, and what is sent
  FileEnd end_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<stream::PeerStream> stream_;
  uint64_t transfers_ = 0;
  // These two belong to the last transfer.
  uint64_t received_ = 0;                        // bytes, without headers
  std::optional<stream::PieceChecker> checker_;  // empty: it is not compared
};

// The way of `files`, which outlive it, for files of `bytes`. One is sent before it is returned.
absl::StatusOr<std::unique_ptr<FileWay>> MakeBatonWay(BatonFiles* files, SendWay way,
                                                      uint64_t bytes);

}  // namespace baton::bench

#endif  // TESTS_BENCH_BATON_FILES_H_
