// The files of transfers, as the service's driver holds them: a successor goes on with one that was
// renamed or deleted meanwhile. FileReads has one for its worker, and FileSender uses it.
//
//   absl::Status OnAdopt(Shard& shard) override {
//     …FileSender::Load for each connection that has a transfer…
//     reads->held_files().Adopt(shard);
//   }
//
// A number in a state names a file. The driver knows nothing of transactions. So a file is dropped
// only when no committed state needs it, and an owner that dies before that leaves files that its
// successor drops. With CommitMode::kManual the service commits the end of a transfer before the
// next Poll.
#ifndef WORKER_HELD_FILES_H_
#define WORKER_HELD_FILES_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "worker/file_reads.h"
#include "worker/region_cache.h"
#include "worker/worker.h"

namespace baton {

// Files are dropped from Worker::Poll, outside of callbacks. Each drop waits for the keeper.
class HeldFiles {
 public:
  // The library holds a shard's files with the tag kTag + Shard::index(). Hold nothing else with
  // it.
  static constexpr uint64_t kTag = uint64_t{0x73656c6966} << 24;  // "files"

  explicit HeldFiles(FileReads* reads);
  ~HeldFiles();

  // Call it in each epoch, when every file that a committed state names was loaded or kept: at the
  // end of OnAdopt. From then on the files that no transfer has are dropped: their owners died, or
  // a transaction was forgotten. Before it, no file is dropped that a former owner has left.
  void Adopt(Shard& shard);
  // For a service that loads a transfer later than that: a committed state has `number`. It stays
  // until a FileSender that has it ends, or until Discard. 0: there is none.
  void Keep(Shard& shard, uint64_t number);
  // The open transaction replaces the state that has `number`, and no FileSender was loaded with
  // it. Drops the file after the commit. Does nothing if it was not kept.
  void Discard(Connection& connection, uint64_t number);

  // The rest is for FileSender and FileReads.

  // Hands the file to the driver, and returns its number, which is in use. Waits for the keeper.
  // An error is no reason to send nothing: a quota, or the file is not one that can be held, or the
  // keeper does not answer. kFailedPrecondition: it has not answered a while ago, and is not asked.
  absl::StatusOr<uint64_t> Hold(Shard& shard, int fd);
  absl::StatusOr<FileDescriptor> Take(uint64_t number);
  // A FileSender has `number`.
  void Use(Shard& shard, uint64_t number);
  // It has ended. Releases the region, and the file if Hold has held it, when the sends that are
  // staged by now have completed and that is committed, or the connection has ended. 0: there is no
  // file.
  void End(Connection& connection, uint64_t number, RegionCache::Lease region);
  // The shard is another worker's now, with what is left to be dropped.
  void Forget(const Shard& shard);

 private:
  using Clock = std::chrono::steady_clock;

  struct Ended {
    Connection* connection = nullptr;
    uint32_t generation = 0;
    uint64_t sends = 0;  // the sequence number behind the last one
    uint64_t number = 0;
    RegionCache::Lease region;
  };
  struct User {
    uint32_t shard = 0;
    uint32_t senders = 0;
    bool is_kept = false;
  };
  // The work that is left for a shard.
  struct Place {
    Shard* shard = nullptr;
    uint64_t epoch = 0;
    bool is_listed = false;   // `held` has what former owners left
    bool drops_lost = false;  // Adopt was called
    uint32_t retry_ms = FileReads::kRetryMs;
    std::vector<Ended> ended;
    std::vector<uint64_t> to_drop;
    std::set<uint64_t> held;  // with the shard's tag: others are the application's
    std::unique_ptr<FileRequester> requester;
  };

  Place& PlaceOf(Shard& shard);
  void WakeSoon(Place& place);
  void Settle(Place& place);
  static bool IsOver(const Ended& ended);
  void Drop(Place& place);
  absl::Status ListHeld(Place& place);
  void NoteRefusal(const absl::Status& why);

  FileReads* const reads_;
  Worker& worker_;
  std::map<uint64_t, User> users_;  // by number
  std::vector<Place> places_;       // by shard
  Clock::time_point refused_until_ = {};
};

}  // namespace baton

#endif  // WORKER_HELD_FILES_H_
