// A cache of regions in a service: what committed sends name stays, and a successor goes on with
// what was registered.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "tests/lib/driver/own_memory.h"
#include "tests/worker/worker_fixture.h"
#include "worker/region_cache.h"

namespace baton {
namespace {

using driver::testing::OwnMemory;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::RawPeer;
using testing::ScriptedService;
using ::testing::SizeIs;
using testing::WorkerFixture;
using Kind = Completion::Kind;

// The guide has this.
absl::Status SendCached(RegionCache& cache, Connection& connection, int memfd, uint64_t from,
                        uint32_t bytes) {
  BATON_ASSIGN_OR_RETURN(const RegionCache::Lease lease, cache.Acquire(memfd, from, bytes));
  const std::array piece = {lease.At(from, bytes)};
  BATON_RETURN_IF_ERROR(connection.shard().Send(connection, {.buffers = piece}));
  return connection.shard().Commit();  // the lease ends after it
}

class CachedRegionsTest : public WorkerFixture {
 protected:
  void Prepare(const RegionCache::Options& options) {
    Start();
    for (ScriptedService* service : {&first, &second}) {
      service->on_completion = [](Shard& shard, const Completion& completion) {
        AcceptWith(shard, completion, 4);
      };
    }
    worker = Add(&first);
    ASSERT_TRUE(Until([&] { return first.shards.size() == 1; }));
    cache = RegionCache::Create(*worker, options).value();
    Connect(peer, *worker);
    ASSERT_TRUE(Until([&] { return peer.established && first.Count(Kind::kEstablished) == 1; }));
    connection = first.completions.back().connection;
    memory.Put(0, "first");
    other.Put(0, "other");
  }

  ScriptedService& first = NewService();
  ScriptedService& second = NewService();
  Worker* worker = nullptr;
  Connection* connection = nullptr;
  std::unique_ptr<RegionCache> cache;
  RawPeer peer;
  OwnMemory memory, other;
};

TEST_F(CachedRegionsTest, shouldSendAgainFromTheSameRegion) {
  ASSERT_NO_FATAL_FAILURE(Prepare({}));
  for (int i = 0; i < 3; ++i) peer.Receive();
  EXPECT_EQ(SendCached(*cache, *connection, memory.fd(), 0, 5), absl::OkStatus());
  EXPECT_EQ(SendCached(*cache, *connection, memory.fd(), 1, 4), absl::OkStatus());
  EXPECT_EQ(SendCached(*cache, *connection, other.fd(), 0, 5), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 3 && first.Count(Kind::kSend) == 3; }));
  EXPECT_THAT(peer.received, ElementsAre("first", "irst", "other"));
  EXPECT_EQ(cache->statistics().hits, 1u);
  EXPECT_THAT(worker->Regions(), SizeIs(2));
  EXPECT_EQ(cache->InvalidateAll(), absl::OkStatus());
  EXPECT_THAT(worker->Regions(), IsEmpty());
  EXPECT_THAT(worker->HeldDescriptors(RegionCache::kTag).value(), IsEmpty());
}

TEST_F(CachedRegionsTest, shouldNotEvictWhatACommittedSendNames) {
  ASSERT_NO_FATAL_FAILURE(Prepare({.most_regions = 1}));
  ASSERT_EQ(SendCached(*cache, *connection, memory.fd(), 0, 5), absl::OkStatus());
  // The peer has no receive for it.
  EXPECT_EQ(SendCached(*cache, *connection, other.fd(), 0, 5).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->Invalidate(memory.fd()).code(), absl::StatusCode::kFailedPrecondition);
  peer.Receive();
  peer.Receive();
  ASSERT_TRUE(Until([&] { return first.Count(Kind::kSend) == 1; }));
  EXPECT_EQ(SendCached(*cache, *connection, other.fd(), 0, 5), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 2; }));
  EXPECT_THAT(peer.received, ElementsAre("first", "other"));
  EXPECT_THAT(worker->Regions(), SizeIs(1));
}

TEST_F(CachedRegionsTest, shouldGoOnInASuccessor) {
  ASSERT_NO_FATAL_FAILURE(Prepare({}));
  ASSERT_EQ(SendCached(*cache, *connection, memory.fd(), 0, 5), absl::OkStatus());
  cache.reset();
  Remove(worker);
  Worker* const heir = Add(&second);
  ASSERT_TRUE(Until([&] { return second.shards.size() == 1; }));
  cache = RegionCache::Create(*heir, {}).value();
  ASSERT_EQ(cache->TakeOver(), absl::OkStatus());
  EXPECT_EQ(cache->InvalidateAll().code(), absl::StatusCode::kFailedPrecondition);
  peer.Receive();
  ASSERT_TRUE(Until([&] { return second.Count(Kind::kSend) == 1; }));
  EXPECT_THAT(peer.received, ElementsAre("first"));
  EXPECT_EQ(cache->InvalidateAll(), absl::OkStatus());
  EXPECT_THAT(heir->Regions(), IsEmpty());
  EXPECT_THAT(heir->HeldDescriptors(RegionCache::kTag).value(), IsEmpty());
}

TEST_F(CachedRegionsTest, shouldFindInASuccessorWhatIsRegistered) {
  ASSERT_NO_FATAL_FAILURE(Prepare({}));
  const uint32_t id = cache->Acquire(memory.fd(), 0, 5).value().region().id;
  cache.reset();
  Remove(worker);
  Worker* const heir = Add(&second);
  cache = RegionCache::Create(*heir, {}).value();
  ASSERT_EQ(cache->TakeOver(), absl::OkStatus());
  EXPECT_EQ(cache->Acquire(memory.fd(), 0, 5).value().region().id, id);
  EXPECT_EQ(cache->statistics().hits, 1u);
}

}  // namespace
}  // namespace baton
