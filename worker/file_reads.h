// Reads of files into registered memory, by io_uring, for all transfers of a worker
// (file_sender.h).
//
//   auto worker = …Worker::Attach(options, &service)…;
//   service.reads = …FileReads::Create(*worker, {})…;
//   …
//   absl::Status OnAdopt(Shard& shard) override {
//     …FileSender::Load for each connection that has a transfer…
//     reads->held_files().Adopt(shard);
//   }
//   void OnRelease(Shard& shard) override {
//     senders.erase(…those of the shard…);
//     reads->Finish(shard);
//   }
//   void OnLost(Shard& shard) override { …the same… }
//
// A read that is under way writes into scratch memory of a shard's heap. If its process dies, it
// may still write until all of the process is gone. So the service must have
// Capacity::outside_effects. Create refuses others.
#ifndef WORKER_FILE_READS_H_
#define WORKER_FILE_READS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/worker.h"

namespace baton {

class FileReads;
class HeldFiles;

// Has reads under way. When it is destroyed, they are cancelled, and their memory is freed when
// they are over. Create one on the thread of the FileReads, which it must not outlive.
class FileRequester {
 public:
  // `wake` is called from Worker::Poll, outside of OnCompletion, when a read has completed, and
  // when memory or a read that was refused may be had now. What it stages is committed after it,
  // unless the mode is CommitMode::kManual. It may destroy the requester. It may come without a
  // reason.
  // The library commits the shard before each wake, so that `wake` finds what was staged before in
  // the committed state. It does not with CommitMode::kManual.
  FileRequester(FileReads* reads, Shard* shard, std::function<void()> wake);
  ~FileRequester();
  FileRequester(const FileRequester&) = delete;
  FileRequester& operator=(const FileRequester&) = delete;

 private:
  friend class FileReads;

  FileReads* reads_;
  Shard* shard_;
  std::shared_ptr<const std::function<void()>> wake_;
  uint64_t id_ = 0;
  bool due_ = false;      // listed to be woken
  bool waits_ = false;    // listed for a piece's memory
  bool retries_ = false;  // listed for the timer
};

// One for a worker. The service owns it. Like the service, it must outlive the Worker, and only the
// thread that called Attach may use it while the Worker lives.
class FileReads {
 public:
  struct Options {
    bool use_io_uring = true;  // false: reads are done by pread(2), while the caller waits
    uint32_t most_reads = 64;  // pieces that are being read, or read and not sent: 1 to 1024
    // Their scratch memory in bytes, in all heaps together, at least kMostPieceBytes. 8 MiB keeps
    // 32 transfers of the default pipeline busy. Further ones take turns.
    uint64_t most_bytes = 8 << 20;
  };
  struct Statistics {
    uint64_t reads = 0;      // started
    uint64_t repeated = 0;   // short ones that were started again
    uint32_t under_way = 0;  // now
    uint32_t pieces = 0;     // under way, or read and not sent
    uint64_t bytes = 0;      // of their scratch memory
  };

  // kFailedPrecondition: the service lacks outside_effects or a heap; the message says which.
  // kInvalidArgument: the message names the wrong option. Where the kernel or the container refuses
  // io_uring, reads are done by pread.
  static absl::StatusOr<std::unique_ptr<FileReads>> Create(Worker& worker, const Options& options);
  ~FileReads();

  bool uses_io_uring() const;
  // Returns why io_uring is not used. Empty: it is.
  const std::string& fallback_reason() const;
  Statistics statistics() const;
  Worker& worker() const;
  // The files of transfers that the driver holds for successors.
  HeldFiles& held_files() { return *held_files_; }

  // Cancels all reads into the shard's heap and waits until they are over. Call it last in
  // OnRelease and OnLost, and in an OnAdopt that fails. A read that neither ends nor can be
  // cancelled, from a server that does not answer, for example, makes the worker hang: the keeper
  // kills it, and a successor waits until it is gone.
  void Finish(Shard& shard);

  // For FileSender, and others that read files in pieces.

  static constexpr uint32_t kMostPieceBytes = 1 << 20;

  // One piece. Its memory is scratch memory of the shard's heap.
  struct Piece {
    uint32_t read = 0;  // its number
    Buffer memory;
  };
  enum class Progress : uint8_t { kUnderWay, kRead, kFailed };

  // Allocates `header` + `length` bytes and reads `length` bytes at `offset` of the file behind the
  // header. Submit hands the reads to the kernel. The descriptor must stay open until the piece is
  // read or released. REQUIRES: the file is a regular one, without O_DIRECT: a device may write
  // into memory even after the process is gone. kResourceExhausted: no piece or memory is free now.
  // `requester` is woken when to try again.
  absl::StatusOr<Piece> Start(FileRequester& requester, int fd, uint64_t offset, uint32_t header,
                              uint32_t length);
  // `requester` looks at its pieces afterwards, and is not woken for those that are read by then.
  void Submit(FileRequester& requester);
  // kFailed: ErrorOf says why.
  Progress ProgressOf(const Piece& piece) const;
  // kOutOfRange: the file ends before the piece does.
  absl::Status ErrorOf(const Piece& piece) const;
  // The piece is sent, or not wanted. Its memory is freed: at once, or when the read is over.
  void Release(const Piece& piece);
  void WakeSoon(FileRequester& requester);
  // Wakes the requester after so long, or earlier: something was refused, and no event says when to
  // try again.
  void RetryLater(FileRequester& requester, uint32_t milliseconds = kRetryMs);
  static constexpr uint32_t kRetryMs = 2;

 private:
  friend class FileRequester;
  class Core;

  explicit FileReads(std::unique_ptr<Core> core);

  std::unique_ptr<Core> core_;
  std::unique_ptr<HeldFiles> held_files_;  // after core_, which it uses
};

}  // namespace baton

#endif  // WORKER_FILE_READS_H_
