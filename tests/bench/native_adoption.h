// A native service whose owner dies: its heir takes over shards with many connections.
//
// Over a device that does nothing, with the drivers of both workers in one process.
#ifndef TESTS_BENCH_NATIVE_ADOPTION_H_
#define TESTS_BENCH_NATIVE_ADOPTION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/status.h"
#include "supervisor/driver/native/native_engine.h"
#include "tests/bench/null_device.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::bench {

// From the death to the end of the first shard's recovery, and of the last one's.
struct AdoptionTimes {
  double first_us = 0;
  double last_us = 0;
};

// Thread-compatible.
class NativeAdoption final : private driver_process::EngineListener {
 public:
  // With all connections established, as many in each shard.
  static absl::StatusOr<std::unique_ptr<NativeAdoption>> Start(
      uint32_t shards, uint32_t connections, NullPeerKind peer = NullPeerKind::kNone);
  ~NativeAdoption() override;

  // Publishes up to kDepth transactions of the first connection, of shard 0. Each has a receive and
  // a SEND of 64 bytes. REQUIRES: the connection has nothing outstanding or unacknowledged.
  static constexpr uint32_t kDepth = 8;
  void PublishSends(uint32_t count);
  // Does what the owner's driver does for the next of these: applies it, which posts both requests,
  // and polls their completions.
  absl::Status DriveNext() {
    const BatonNativeHost& owner = host(0);
    BATON_RETURN_IF_ERROR(Check(0, owner.apply(owner.context, 0)));
    return Check(0, owner.poll(owner.context, 0));
  }
  // Acknowledges everything. Returns the number of completions that it had not acknowledged before.
  absl::StatusOr<uint64_t> AcknowledgeAll();

  // Once.
  absl::StatusOr<AdoptionTimes> Adopt();

 private:
  // Describes one shard and its first owner.
  struct Shard {
    Shard(const arena::Arena* arena, uint32_t index) : writer(arena, index) {}
    driver::testing::CommitWriter writer;
    uint64_t read = 0;
  };

  NativeAdoption(uint32_t shards, uint32_t connections, NullPeerKind peer)
      : shards_(shards), connections_(connections), peer_(peer) {}

  absl::Status Open();
  absl::Status AddWorker(uint32_t slot);
  absl::Status Establish();
  absl::Status Serve(uint32_t shard);
  absl::Status Check(uint32_t slot, int result);
  uint32_t OwnedBy(uint32_t slot) const;
  BatonNativeHost& host(uint32_t slot) { return *drivers_[slot]->host(); }

  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override {}
  void OnDeviceLost(const absl::Status&) override {}

  const uint32_t shards_;
  const uint32_t connections_;
  const NullPeerKind peer_;
  uint32_t established_ = 0;
  std::unique_ptr<verbs::Device> device_;
  std::optional<arena::Arena> arena_;
  std::unique_ptr<driver_process::NativeEngine> engine_;
  std::unique_ptr<driver_process::NativeDriver> drivers_[2];  // of the owner, and of its heir
  std::vector<Shard> served_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_NATIVE_ADOPTION_H_
