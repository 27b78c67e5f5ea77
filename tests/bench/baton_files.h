// A worker of Baton that sends files with FileSender, and its peer, which is here.
#ifndef TESTS_BENCH_BATON_FILES_H_
#define TESTS_BENCH_BATON_FILES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/stream/file_pieces.h"
#include "lib/stream/peer_stream.h"
#include "lib/verbs/verbs.h"
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
  absl::Status Fetch(uint64_t bytes, bool checks);
  // All that the service has registered.
  static uint64_t registered_bytes();

  void DumpLogs() const { server_->DumpLogs(); }

 private:
  BatonFiles(std::unique_ptr<Server> server, examples::SharedMemory memory)
      : server_(std::move(server)), memory_(std::move(memory)) {}
  absl::Status Connect(const verbs::testing::Fabric& fabric);
  absl::Status Take(absl::Span<const uint8_t> message, bool checks, stream::PieceChecker* checker);

  const std::unique_ptr<Server> server_;
  examples::SharedMemory memory_;  // the ring, and what is sent
  FileEnd end_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<stream::PeerStream> stream_;
  uint64_t transfers_ = 0;
  uint64_t received_ = 0;  // bytes of the last one
};

// The way of `files`, which outlive it, for files of `bytes`. One is sent before it is returned.
absl::StatusOr<std::unique_ptr<FileWay>> MakeSendFile(BatonFiles* files, uint64_t bytes);

}  // namespace baton::bench

#endif  // TESTS_BENCH_BATON_FILES_H_
