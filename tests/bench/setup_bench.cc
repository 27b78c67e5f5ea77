// How long a driver takes to go on with what a dead one left, by what there is of it: connections,
// work requests outstanding, completions that nobody has acknowledged; and how long a native heir
// takes for the first of its shards, and for all. `./run bench setup` starts it.
//
// In one process, over a device that does nothing: what a real one adds is its own.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/local_driver.h"
#include "tests/bench/native_adoption.h"
#include "tests/bench/null_device.h"
#include "tests/bench/suite.h"
#include "tests/lib/driver/commit_writer.h"
#include "worker/examples/common/flags.h"

namespace baton::bench {
namespace {

constexpr uint32_t kDepth = 64;
constexpr uint32_t kSome = 100;  // connections, where their number is not what varies
constexpr std::array<uint32_t, 4> kConnections = {1, 100, 1000, 10000};
constexpr std::array<uint32_t, 4> kRequests = {0, 100, 1000, 6400};  // of kSome connections
constexpr uint32_t kEntriesOfATransaction = 128;
constexpr uint32_t kAdopted = 10'000;  // connections, over all shards
constexpr std::array<uint32_t, 2> kAdoptedShards = {1, 16};

class Silent final : public native::LocalObserver {
  void OnConnectionState(uint32_t, std::string_view) override {}
  void OnRefusedConnection(std::string_view) override {}
};

// A service of one shard whose driver dies and is succeeded.
class MortalService {
 public:
  static absl::StatusOr<std::unique_ptr<MortalService>> Start(uint32_t connections) {
    auto service = std::unique_ptr<MortalService>(new MortalService(connections));
    BATON_ASSIGN_OR_RETURN(
        arena::Arena arena,
        arena::Arena::Create(driver::testing::TestShape(1, connections, kDepth), "mortal"));
    service->arena_.emplace(std::move(arena));
    BATON_RETURN_IF_ERROR(service->Establish());
    return service;
  }

  // Sends that were posted and did not complete, or of which nobody has acknowledged that they did;
  // in turns over all connections.
  absl::Status CommitSends(uint32_t count, bool complete) {
    device_.SetHolding(!complete);
    for (uint32_t done = 0; done < count;) {
      const uint32_t end = std::min(count, done + std::min(connections_, kEntriesOfATransaction));
      for (; done < end; ++done) writer_->Send(done % connections_, 0, 64);
      BATON_RETURN_IF_ERROR(Publish());
    }
    for (;;) {
      BATON_ASSIGN_OR_RETURN(const bool took, local_->driver().PollCompletions(0));
      if (!took) return absl::OkStatus();
    }
  }

  // In microseconds.
  absl::StatusOr<double> DieAndRecover() {
    const uint64_t began = MonotonicNanoseconds();
    BATON_ASSIGN_OR_RETURN(auto successor, local_->MakeSuccessor());
    local_->Follow(std::move(successor));
    return static_cast<double>(MonotonicNanoseconds() - began) * 1e-3;
  }

 private:
  explicit MortalService(uint32_t connections) : connections_(connections) {}

  absl::Status Establish() {
    BATON_ASSIGN_OR_RETURN(local_, native::LocalDriver::Create(&*arena_, &device_, &observer_));
    BATON_RETURN_IF_ERROR(
        driver::ListenOnce(&device_, local_->objects(), {"127.0.0.1", 1}).status());
    driver::Ownership(&*arena_, 0).GiveTo(0, 1);
    writer_.emplace(&*arena_, 0);
    writer_->Begin(1);
    device_.AddRequests(connections_);
    HandleEvents();
    for (uint32_t i = 0; i < connections_; ++i) {
      writer_->Accept(i, 0);
      if (i % kEntriesOfATransaction == 0 || i + 1 == connections_)
        BATON_RETURN_IF_ERROR(Publish());
    }
    HandleEvents();
    writer_->Acknowledge(arena_->shard(0).completion_tail);
    return Publish();
  }

  void HandleEvents() {
    uint32_t shard = 0;
    do {
      while (local_->HandleNotice(&shard)) {
      }
    } while (local_->TurnManager());
  }

  absl::Status Publish() {
    writer_->Publish();
    absl::Status error;
    const driver::CommitOutcome outcome = local_->driver().ApplyNext(0, &error);
    if (outcome == driver::CommitOutcome::kApplied) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("a transaction was not applied: ", error.ToString()));
  }

  const uint32_t connections_;
  NullDevice device_{NullPeerKind::kNone};
  Silent observer_;
  std::optional<arena::Arena> arena_;
  std::unique_ptr<native::LocalDriver> local_;
  std::optional<driver::testing::CommitWriter> writer_;
};

class SetupBench {
 public:
  explicit SetupBench(Suite* suite) {
    suite->Compare({"recovery_10000_connections_to_1", "recovery_10000_connections_us",
                    "recovery_1_connections_us", Better::kLess});
    suite->Compare({"recovery_6400_outstanding_to_0", "recovery_6400_outstanding_us",
                    "recovery_0_outstanding_us", Better::kLess});
    suite->Compare({"recovery_6400_unacknowledged_to_0", "recovery_6400_unacknowledged_us",
                    "recovery_0_unacknowledged_us", Better::kLess});
    suite->Compare({"adoption_first_of_16_shards_to_1", "adoption_first_of_16_shards_us",
                    "adoption_first_of_1_shards_us", Better::kLess, 1});
    suite->Compare({"adoption_all_of_16_shards_to_1", "adoption_all_of_16_shards_us",
                    "adoption_all_of_1_shards_us", Better::kLess});
    Line connections{"connections", {}}, outstanding{"outstanding", {}}, log{"unacknowledged", {}};
    for (const uint32_t n : kConnections)
      connections.points.emplace_back(n, Name(n, "connections"));
    for (const uint32_t n : kRequests) {
      if (n == 0) continue;  // the axis is logarithmic
      outstanding.points.emplace_back(n, Name(n, "outstanding"));
      log.points.emplace_back(n, Name(n, "unacknowledged"));
    }
    suite->Draw(
        {"recovery", "Recovery of a shard", "how many", "us", {connections, outstanding, log}});
  }

  absl::Status Measure(Round& round) {
    for (const uint32_t shards : kAdoptedShards) {
      BATON_ASSIGN_OR_RETURN(const auto service, NativeAdoption::Start(shards, kAdopted));
      BATON_ASSIGN_OR_RETURN(const AdoptionTimes took, service->Adopt());
      round.Set(absl::StrCat("adoption_first_of_", shards, "_shards_us"), took.first_us, "us");
      round.Set(absl::StrCat("adoption_all_of_", shards, "_shards_us"), took.last_us, "us");
    }
    for (const uint32_t n : kConnections) {
      BATON_RETURN_IF_ERROR(MeasureOne(Name(n, "connections"), n, 0, false, round));
    }
    for (const uint32_t n : kRequests) {
      BATON_RETURN_IF_ERROR(MeasureOne(Name(n, "outstanding"), kSome, n, false, round));
      BATON_RETURN_IF_ERROR(MeasureOne(Name(n, "unacknowledged"), kSome, n, true, round));
    }
    return absl::OkStatus();
  }

 private:
  static std::string Name(uint32_t count, const char* what) {
    return absl::StrCat("recovery_", count, "_", what, "_us");
  }

  static absl::Status MeasureOne(const std::string& figure, uint32_t connections, uint32_t requests,
                                 bool complete, Round& round) {
    BATON_ASSIGN_OR_RETURN(const auto service, MortalService::Start(connections));
    if (requests > 0) BATON_RETURN_IF_ERROR(service->CommitSends(requests, complete));
    BATON_ASSIGN_OR_RETURN(const double took_us, service->DieAndRecover());
    round.Set(figure, took_us, "us");
    return absl::OkStatus();
  }
};

int Main(int argc, char** argv) {
  SuiteOptions options;
  examples::Flags flags("What it takes to go on with what a dead driver left.");
  AddSuiteOptions(flags, &options);
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  Suite suite("setup", options);
  SetupBench bench(&suite);
  return suite.RunToExit([&](Round& round) { return bench.Measure(round); });
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
