// Chunks: each is one command's, and free again only when a successor would find it so.
#include "worker/examples/nvmed/chunk_pool.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace baton::nvmed {
namespace {

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

}  // namespace
}  // namespace baton::nvmed
