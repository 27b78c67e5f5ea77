// Each chunk is one command's, and free again only when a successor would find it so. In a plan of
// the buffers nothing lies on anything else, and whoever has another plan is told.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"
#include "worker/examples/nvmed/buffer_plan.h"

namespace baton::nvmed {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ChunkPool PoolOf(uint32_t chunks) {
  ChunkPool pool;
  pool.Reset(chunks);
  pool.Fill();
  return pool;
}

TEST(ChunkPoolTest, shouldGiveEachChunkOnce) {
  ChunkPool pool = PoolOf(3);
  std::set<uint32_t> taken;
  for (int i = 0; i < 3; ++i) {
    const auto chunk = pool.Take(7);
    ASSERT_TRUE(chunk.has_value());
    EXPECT_LT(*chunk, 3u);
    EXPECT_TRUE(taken.insert(*chunk).second);
    EXPECT_TRUE(pool.Has(*chunk, 7));
    EXPECT_FALSE(pool.Has(*chunk, 6));
  }
  EXPECT_FALSE(pool.Take(7).has_value());
}

TEST(ChunkPoolTest, shouldHaveNoneBeforeItIsFilled) {
  ChunkPool pool;
  EXPECT_FALSE(pool.Take(0).has_value());
  EXPECT_FALSE(pool.Has(0, 0));
  pool.Reset(3);
  EXPECT_FALSE(pool.Take(0).has_value());
}

TEST(ChunkPoolTest, shouldKeepWhatIsGivenBackUntilTheCommit) {
  ChunkPool pool = PoolOf(1);
  EXPECT_EQ(pool.Take(0), 0u);
  pool.GiveBack(0);
  EXPECT_FALSE(pool.Has(0, 0));
  EXPECT_FALSE(pool.Take(1).has_value());
  pool.Committed();
  EXPECT_EQ(pool.Take(1), 0u);
}

TEST(ChunkPoolTest, shouldTakeChunksBackOnce) {
  ChunkPool pool = PoolOf(2);
  ASSERT_TRUE(pool.Take(0).has_value());
  ASSERT_TRUE(pool.Take(0).has_value());
  pool.GiveBack(1);
  pool.GiveBack(1);
  pool.GiveBack(2);
  pool.GiveBack(0xffffffff);
  pool.Committed();
  pool.Committed();
  EXPECT_EQ(pool.Take(1), 1u);
  EXPECT_FALSE(pool.Take(1).has_value());
}

TEST(ChunkPoolTest, shouldTakeBackAllOfAConnectionThatHasEnded) {
  ChunkPool pool = PoolOf(4);
  const uint32_t first = *pool.Take(0), second = *pool.Take(1), third = *pool.Take(0);
  pool.GiveBackAll(0);
  EXPECT_FALSE(pool.Has(first, 0));
  EXPECT_TRUE(pool.Has(second, 1));
  EXPECT_FALSE(pool.Has(third, 0));
  pool.Committed();
  int free = 0;
  while (const auto chunk = pool.Take(2)) {
    EXPECT_NE(*chunk, second);
    ++free;
  }
  EXPECT_EQ(free, 3);
}

TEST(ChunkPoolTest, shouldNotGiveWhatIsClaimed) {
  ChunkPool pool;
  pool.Reset(4);
  EXPECT_TRUE(pool.Claim(2, 5));
  EXPECT_TRUE(pool.Claim(0, 6));
  pool.Fill();
  EXPECT_TRUE(pool.Has(2, 5));
  std::set<uint32_t> taken;
  while (const auto chunk = pool.Take(1)) taken.insert(*chunk);
  EXPECT_EQ(taken, (std::set<uint32_t>{1, 3}));
  pool.GiveBack(2);
  pool.Committed();
  EXPECT_EQ(pool.Take(1), 2u);
}

TEST(ChunkPoolTest, shouldLetOneCommandAloneClaimAChunk) {
  ChunkPool pool;
  pool.Reset(4);
  EXPECT_TRUE(pool.Claim(2, 5));
  EXPECT_FALSE(pool.Claim(2, 6)) << "another connection's";
  EXPECT_FALSE(pool.Claim(2, 5)) << "another command's of the same connection";
  EXPECT_TRUE(pool.Has(2, 5));
  EXPECT_FALSE(pool.Claim(4, 5));
  EXPECT_FALSE(pool.Claim(0xffffffff, 5));
}

TEST(ChunkPoolTest, shouldForgetAllWithReset) {
  ChunkPool pool = PoolOf(2);
  ASSERT_TRUE(pool.Take(0).has_value());
  pool.GiveBack(*pool.Take(1));
  pool.Reset(3);
  EXPECT_FALSE(pool.Take(0).has_value());
  pool.Fill();
  std::set<uint32_t> taken;
  while (const auto chunk = pool.Take(1)) taken.insert(*chunk);
  EXPECT_EQ(taken, (std::set<uint32_t>{0, 1, 2}));
  pool.Committed();
  EXPECT_FALSE(pool.Take(1).has_value()) << "what was given back before";
}

TEST(ChunkPoolTest, shouldNeverGiveAChunkToTwo) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr uint32_t kChunks = 10, kConnections = 4;
  ChunkPool pool = PoolOf(kChunks);
  std::map<uint32_t, uint32_t> owners;  // by chunk
  std::set<uint32_t> given_back;
  for (int round = 0; round < 20000; ++round) {
    const auto connection = static_cast<uint32_t>(random() % kConnections);
    switch (random() % 8) {
      case 0:
        pool.Committed();
        given_back.clear();
        break;
      case 1:
        pool.GiveBackAll(connection);
        for (auto at = owners.begin(); at != owners.end();) {
          if (at->second != connection) {
            ++at;
            continue;
          }
          given_back.insert(at->first);
          at = owners.erase(at);
        }
        break;
      case 2:
      case 3: {
        const auto chunk = static_cast<uint32_t>(random() % (kChunks + 1));
        pool.GiveBack(chunk);
        if (owners.erase(chunk) > 0) given_back.insert(chunk);
        break;
      }
      default: {
        const auto chunk = pool.Take(connection);
        ASSERT_EQ(chunk.has_value(), owners.size() + given_back.size() < kChunks);
        if (!chunk) break;
        ASSERT_LT(*chunk, kChunks);
        ASSERT_EQ(given_back.count(*chunk), 0u);
        ASSERT_TRUE(owners.emplace(*chunk, connection).second);
      }
    }
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      for (uint32_t one = 0; one < kConnections; ++one) {
        ASSERT_EQ(pool.Has(chunk, one), owners.count(chunk) > 0 && owners[chunk] == one);
      }
    }
  }
}

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPlenty = uint64_t{1} << 40;

TargetConfig ConfigOf(uint32_t queue_entries = 128, uint32_t in_capsule_bytes = 4096,
                      uint32_t max_transfer_bytes = 131072) {
  TargetConfig config;
  config.set_queue_entries(queue_entries);
  config.set_in_capsule_bytes(in_capsule_bytes);
  config.set_max_transfer_bytes(max_transfer_bytes);
  return config;
}

void AddMemory(TargetConfig& config, const std::string& name, uint32_t id, uint64_t bytes) {
  SubsystemConfig* const subsystem = config.add_subsystems();
  subsystem->set_nqn("nqn.2014-08.org.example:" + name);
  NamespaceConfig* const one = subsystem->add_namespaces();
  one->set_id(id);
  one->set_block_bytes(512);
  one->mutable_memory()->set_bytes(bytes);
}

Capacity CapacityOf(uint32_t connections, uint32_t sends = 512, uint32_t receives = 256) {
  Capacity capacity;
  capacity.connections = connections;
  capacity.send_queue_depth = sends;
  capacity.receive_queue_depth = receives;
  return capacity;
}

BufferPlan Make(const TargetConfig& config, const Capacity& capacity = CapacityOf(4),
                uint64_t bytes = kPlenty) {
  const auto plan = BufferPlan::Make(config, capacity, bytes);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// The number of bytes that a refusal asks for.
uint64_t NeededBy(const absl::Status& status) {
  const std::string text(status.message());
  const std::string before = "raise buffer_bytes to ";
  const size_t at = text.find(before);
  return at == std::string::npos ? 0
                                 : std::strtoull(text.c_str() + at + before.size(), nullptr, 10);
}

struct Range {
  uint64_t begin = 0, bytes = 0;
  std::string what;
};

void ExpectApart(std::vector<Range> ranges, uint64_t bytes) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  uint64_t end = 0;
  std::string before = "nothing";
  for (const Range& range : ranges) {
    ASSERT_LE(end, range.begin) << range.what << " lies on " << before;
    ASSERT_LE(range.bytes, bytes) << range.what;
    end = range.begin + range.bytes;
    before = range.what;
  }
  ASSERT_LE(end, bytes) << before;
}

TEST(BufferPlanTest, shouldLayNothingOnAnythingElse) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    TargetConfig config =
        ConfigOf(32u << random() % 6, static_cast<uint32_t>(kPage * (1 + random() % 8)),
                 8192u << random() % 8);
    for (uint32_t i = 0, count = random() % 5; i < count; ++i) {
      AddMemory(config, std::to_string(i), i + 1, kPage * (1 + random() % 1000));
      // One in a file is not in the buffers.
      NamespaceConfig* const other =
          config.mutable_subsystems(static_cast<int>(i))->add_namespaces();
      other->set_id(i + 2);
      other->mutable_file()->set_path("/a");
    }
    const Capacity capacity = CapacityOf(static_cast<uint32_t>(1 + random() % 6),
                                         128u << random() % 4, 64u << random() % 4);
    const absl::Status refused = BufferPlan::Make(config, capacity, 0).status();
    uint64_t bytes = kPlenty;
    if (random() % 4 != 0) {
      const absl::Status few = BufferPlan::Make(config, capacity, uint64_t{1} << 23).status();
      bytes = few.ok() ? uint64_t{1} << 23 : NeededBy(few);
      if (bytes == 0) bytes = kPlenty;  // a namespace alone is too large
      bytes += random() % (1 << 22);
    }
    ASSERT_FALSE(refused.ok());
    const auto plan = BufferPlan::Make(config, capacity, bytes);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_GE(plan->queue_entries(), 32u);
    ASSERT_LE(plan->queue_entries(), config.queue_entries());
    ASSERT_LE(plan->queue_entries() * 2, capacity.receive_queue_depth);
    ASSERT_LE(plan->queue_entries() * 4, capacity.send_queue_depth);
    ASSERT_GE(plan->chunks(), 4u);
    ASSERT_LE(plan->chunks(), 65519u);

    std::vector<Range> ranges = {{0, kPage, "header"}};
    for (int i = 0; i < config.subsystems_size(); ++i) {
      const uint64_t begin = plan->Memory(i, 0);
      ASSERT_EQ(begin % kPage, 0u);
      ranges.push_back(
          {begin, config.subsystems(i).namespaces(0).memory().bytes(), absl::StrCat("memory ", i)});
    }
    for (uint32_t connection = 0; connection < capacity.connections; ++connection) {
      for (uint64_t sequence = 0; sequence < 2 * capacity.send_queue_depth; ++sequence) {
        const uint64_t begin = plan->Response(connection, sequence);
        ranges.push_back({begin, 16, absl::StrCat("response ", connection, "/", sequence)});
        ASSERT_EQ(plan->Response(connection, sequence + 2 * capacity.send_queue_depth), begin);
      }
      for (uint32_t slot = 0; slot < plan->queue_entries(); ++slot) {
        const Buffer capsule = plan->Capsule(connection, slot);
        ASSERT_EQ(capsule.length, 64 + config.in_capsule_bytes());
        ranges.push_back(
            {capsule.offset, capsule.length, absl::StrCat("capsule ", connection, "/", slot)});
      }
    }
    for (uint32_t chunk = 0; chunk < plan->chunks(); ++chunk) {
      const uint64_t begin = plan->Chunk(chunk);
      ASSERT_EQ(begin % kPage, 0u);
      ASSERT_EQ(plan->ChunkOf(begin), chunk);
      ASSERT_EQ(plan->ChunkOf(begin + plan->chunk_bytes() - 1), chunk);
      ranges.push_back({begin, plan->chunk_bytes(), absl::StrCat("chunk ", chunk)});
    }
    for (const Range& range : ranges) {
      if (range.what.substr(0, 5) == "chunk") continue;
      ASSERT_EQ(plan->ChunkOf(range.begin), plan->chunks()) << range.what;
      ASSERT_EQ(plan->ChunkOf(range.begin + range.bytes - 1), plan->chunks()) << range.what;
    }
    ASSERT_EQ(plan->ChunkOf(plan->Chunk(plan->chunks())), plan->chunks());
    ASSERT_EQ(plan->ChunkOf(UINT64_MAX), plan->chunks());
    ExpectApart(std::move(ranges), bytes);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(BufferPlanTest, shouldSayHowManyBytesAreNeeded) {
  TargetConfig config = ConfigOf();
  AddMemory(config, "one", 1, 3 * kPage);
  const Capacity capacity = CapacityOf(7);
  const absl::Status status = BufferPlan::Make(config, capacity, 16 * kPage).status();
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("65536 bytes of buffers are too few"), HasSubstr("7 queues of 128 entries"),
            HasSubstr("or lower max_connections, queue_entries or in_capsule_bytes")));
  const uint64_t needed = NeededBy(status);
  EXPECT_EQ(BufferPlan::Make(config, capacity, needed - 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Make(config, capacity, needed).chunks(), 4u);
  EXPECT_EQ(Make(config, capacity, needed + 131071).chunks(), 4u);
  EXPECT_EQ(Make(config, capacity, needed + 131072).chunks(), 5u);
}

TEST(BufferPlanTest, shouldRefuseNamespacesThatAreLargerThanTheBuffers) {
  for (const uint64_t bytes : {kPlenty, UINT64_MAX - kPage + 1, uint64_t{1} << 63}) {
    TargetConfig config = ConfigOf();
    AddMemory(config, "one", 1, kPage);
    AddMemory(config, "two", 1, bytes);
    const absl::Status status = BufferPlan::Make(config, CapacityOf(4), kPlenty).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("subsystems[1].namespaces[0].memory.bytes"),
                      HasSubstr("raise buffer_bytes")));
  }
  // Together they would begin anew from 0.
  TargetConfig config = ConfigOf();
  AddMemory(config, "one", 1, uint64_t{1} << 63);
  AddMemory(config, "two", 1, uint64_t{1} << 63);
  EXPECT_FALSE(BufferPlan::Make(config, CapacityOf(4), UINT64_MAX).ok());
}

TEST(BufferPlanTest, shouldSayHowLongTheServicesQueuesHaveToBe) {
  for (const Capacity& capacity : {CapacityOf(4, 127, 256), CapacityOf(4, 512, 63),
                                   CapacityOf(4, 0, 0), CapacityOf(4, 64, 32)}) {
    const absl::Status status = BufferPlan::Make(ConfigOf(), capacity, kPlenty).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("raise the service's send_queue_depth to 512"),
                      HasSubstr("receive_queue_depth to 256")));
  }
  EXPECT_EQ(Make(ConfigOf(), CapacityOf(4, 512, 256)).queue_entries(), 128u);
  EXPECT_EQ(Make(ConfigOf(), CapacityOf(4, 256, 256)).queue_entries(), 64u);
  EXPECT_EQ(Make(ConfigOf(), CapacityOf(4, 512, 64)).queue_entries(), 32u);
  EXPECT_EQ(Make(ConfigOf(32), CapacityOf(4)).queue_entries(), 32u);
}

TEST(BufferPlanTest, shouldRefuseMoreNamespacesInMemoryThanTheHeaderNames) {
  TargetConfig config = ConfigOf();
  for (uint32_t i = 0; i < 128; ++i) AddMemory(config, std::to_string(i), 1, kPage);
  Make(config);
  AddMemory(config, "more", 1, kPage);
  const absl::Status status = BufferPlan::Make(config, CapacityOf(4), kPlenty).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("subsystems: 129 namespaces in memory, at most 128"));
}

// ---------------------------------------------------------------- the header

class BufferPlanHeaderTest : public testing::Test {
 protected:
  BufferPlanHeaderTest() {
    config_ = ConfigOf(64, 8192, 65536);
    AddMemory(config_, "one", 1, 0x10000);
    AddMemory(config_, "two", 7, 0x2000);
  }
  // What a service that began with `config_` says to one with this one.
  void ExpectRefusal(const TargetConfig& other, const std::string& why) {
    Make(config_).Stamp(absl::MakeSpan(buffers_));
    const absl::Status status = Make(other).Check(buffers_);
    ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << why;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(why), HasSubstr("restarted")));
  }

  TargetConfig config_;
  alignas(8) std::array<uint8_t, kPage> buffers_ = {};
};

TEST_F(BufferPlanHeaderTest, shouldTakeBuffersThatNobodyHasUsed) {
  EXPECT_TRUE(Make(config_).Check(buffers_).ok());
}

TEST_F(BufferPlanHeaderTest, shouldTakeWhatItStamped) {
  const BufferPlan plan = Make(config_);
  plan.Stamp(absl::MakeSpan(buffers_));
  EXPECT_TRUE(plan.Check(buffers_).ok()) << plan.Check(buffers_);
  EXPECT_TRUE(Make(config_).Check(buffers_).ok());
}

TEST_F(BufferPlanHeaderTest, shouldKeepTheFormatOfTheHeader) {
  buffers_.fill(0);
  Make(config_).Stamp(absl::MakeSpan(buffers_));
  std::vector<uint8_t> expected =
      Hex("62 61 74 6e 76 6d 64 31"  // batnvmd1
          "40 00 00 00 00 20 00 00 00 00 01 00 02 00 00 00"
          "6b 4c 78 5d 20 04 dc 91 00 00 01 00 00 00 00 00"
          "c3 11 31 f4 30 24 3f ae 00 20 00 00 00 00 00 00");
  expected.resize(kPage);
  EXPECT_EQ(std::vector<uint8_t>(buffers_.begin(), buffers_.end()), expected);
}

// One that is stamped anew by a successor would, for a moment, look like one that nobody uses.
TEST_F(BufferPlanHeaderTest, shouldStampOnce) {
  const BufferPlan plan = Make(config_);
  plan.Stamp(absl::MakeSpan(buffers_));
  buffers_[8] ^= 0xff;
  const auto before = buffers_;
  plan.Stamp(absl::MakeSpan(buffers_));
  EXPECT_EQ(buffers_, before);
}

TEST_F(BufferPlanHeaderTest, shouldNameWhatDiffers) {
  TargetConfig other = config_;
  other.set_queue_entries(128);
  ExpectRefusal(other, "queue_entries 128: the service began with 64");
  other = config_;
  other.set_in_capsule_bytes(4096);
  ExpectRefusal(other, "in_capsule_bytes 4096: the service began with 8192");
  other = config_;
  other.set_max_transfer_bytes(131072);
  ExpectRefusal(other, "max_transfer_bytes 131072: the service began with 65536");
  other = config_;
  AddMemory(other, "three", 1, kPage);
  ExpectRefusal(other, "the number of namespaces in memory 3: the service began with 2");
  other = config_;
  other.mutable_subsystems(1)->mutable_namespaces(0)->mutable_memory()->set_bytes(0x3000);
  ExpectRefusal(other, "memory.bytes 12288: the service began with 8192");
  other = config_;
  other.mutable_subsystems(1)->mutable_namespaces(0)->set_id(8);
  ExpectRefusal(other, "the namespaces in memory are others");
  other = config_;
  other.mutable_subsystems()->SwapElements(0, 1);
  ExpectRefusal(other, "in another order");
  // Namespaces in files, and what hosts are told, are no part of it.
  other = config_;
  other.set_io_queues(3);
  other.set_port(1);
  NamespaceConfig* const file = other.mutable_subsystems(0)->add_namespaces();
  file->set_id(9);
  file->mutable_file()->set_path("/a");
  EXPECT_TRUE(Make(other).Check(buffers_).ok());
}

TEST_F(BufferPlanHeaderTest, shouldRefuseBuffersOfAnotherProgram) {
  buffers_[3] = 1;
  const absl::Status status = Make(config_).Check(buffers_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another program"));
}

}  // namespace
}  // namespace baton::nvmed
