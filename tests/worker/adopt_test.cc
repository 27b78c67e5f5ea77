#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/driver/ownership.h"
#include "tests/lib/driver/commit_writer.h"
#include "worker/worker_impl.h"

namespace baton {
namespace {

class Adopter : public Service {
 public:
  absl::Status OnAdopt(Shard& shard) override {
    ++adopted;
    connections = shard.connections().size();
    return absl::OkStatus();
  }
  void OnCompletion(Shard&, const Completion&) override {}
  int adopted = 0;
  size_t connections = 0;
};

// A worker without a keeper: the test gives it shards.
class AdoptTest : public testing::Test {
 protected:
  void SetUp() override {
    auto created = arena::Arena::Create(driver::testing::TestShape(), "kv");
    ASSERT_TRUE(created.ok()) << created.status();
    arena_ = std::make_shared<arena::Arena>(*std::move(created));
    WorkerOptions options;
    options.control_stream = false;
    worker_ = std::make_unique<WorkerImpl>(options, &service_);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, keeper_), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, wake_), 0);
    worker_->Connected(FileDescriptor(keeper_[0]));
    ASSERT_EQ(worker_->Start(arena_, FileDescriptor(wake_[0]), kWorkerId, kSlot), absl::OkStatus());
  }
  void TearDown() override {
    worker_->Die();  // there is nobody to say farewell to
    worker_.reset();
    close(keeper_[1]);
    close(wake_[1]);
  }

  static constexpr uint64_t kWorkerId = 7;
  static constexpr uint32_t kSlot = 1;

  std::shared_ptr<arena::Arena> arena_;
  Adopter service_;
  std::unique_ptr<WorkerImpl> worker_;
  int keeper_[2], wake_[2];
};

TEST_F(AdoptTest, shouldNotBeHinderedByALateStoreOfAFormerOwnerOfTheBank) {
  driver::Ownership ownership(arena_.get(), 0);
  ownership.GiveTo(kSlot, kWorkerId);
  const uint64_t epoch = ownership.epoch();
  arena::StoreRelease(arena_->bank(0, epoch).tail,
                      arena::PackCursor(epoch + arena::kCommitBanks, 3));
  ASSERT_TRUE(worker_->Poll().ok());
  EXPECT_EQ(service_.adopted, 1);
  // Its first commit tells the driver that the shard is served.
  EXPECT_EQ(arena_->bank(0, epoch).tail, arena::PackCursor(epoch, 1));
}

TEST_F(AdoptTest, shouldNotTakeBackWhatItReleasedAndTheDriverHasNotSeenYet) {
  driver::Ownership ownership(arena_.get(), 0);
  ownership.GiveTo(kSlot, kWorkerId);
  ASSERT_TRUE(worker_->Poll().ok());
  ownership.AskRelease(ownership.epoch());
  ASSERT_TRUE(worker_->Poll().ok());
  ownership.NameHeir(0);
  ownership.WithdrawRelease();  // another change is announced before the release is seen
  ASSERT_TRUE(worker_->Poll().ok());
  EXPECT_EQ(service_.adopted, 1);
  ownership.End(/*released=*/true);
  ownership.GiveTo(kSlot, kWorkerId);
  ASSERT_TRUE(worker_->Poll().ok());
  EXPECT_EQ(service_.adopted, 2);
}

// Its state and cursors are those from before the transaction that accepts it, which the driver is
// in the middle of.
TEST_F(AdoptTest, shouldNotLoadAConnectionThatIsBeingAcceptedIntoTheShard) {
  for (const uint32_t index : {0u, 1u}) {
    arena_->connection(index).generation = 1;
    arena_->connection(index).state = static_cast<uint32_t>(arena::ConnectionState::kConnecting);
  }
  arena_->connection(1).arriving = 1;
  driver::Ownership ownership(arena_.get(), 0);
  ownership.GiveTo(kSlot, kWorkerId);
  ASSERT_TRUE(worker_->Poll().ok());
  EXPECT_EQ(service_.connections, 1u);
}

}  // namespace
}  // namespace baton
