#include "lib/base/crc32c.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace baton {
namespace {

using Checksum = uint32_t (*)(uint32_t, const void*, size_t);

class Crc32cTest : public ::testing::TestWithParam<Checksum> {
 protected:
  static uint32_t Of(const std::vector<uint8_t>& bytes) {
    return GetParam()(0, bytes.data(), bytes.size());
  }
};

INSTANTIATE_TEST_SUITE_P(Chosen, Crc32cTest, ::testing::Values(&Crc32c));
INSTANTIATE_TEST_SUITE_P(Instruction, Crc32cTest, ::testing::Values(&Crc32cByInstruction));
INSTANTIATE_TEST_SUITE_P(Table, Crc32cTest, ::testing::Values(&Crc32cByTable));

// The examples of RFC 3720, appendix B.4.
TEST_P(Crc32cTest, shouldBeTheChecksumOfIscsi) {
  std::vector<uint8_t> rising(32), falling(32);
  std::iota(rising.begin(), rising.end(), uint8_t{0});
  std::iota(falling.rbegin(), falling.rend(), uint8_t{0});
  EXPECT_EQ(Of(std::vector<uint8_t>(32, 0)), 0x8a9136aau);
  EXPECT_EQ(Of(std::vector<uint8_t>(32, 0xff)), 0x62a8ab43u);
  EXPECT_EQ(Of(rising), 0x46dd794eu);
  EXPECT_EQ(Of(falling), 0x113fdb5cu);
  EXPECT_EQ(Of({}), 0u);
}

TEST_P(Crc32cTest, shouldGoOnAnywhere) {
  std::vector<uint8_t> bytes(100);
  std::iota(bytes.begin(), bytes.end(), uint8_t{7});
  const uint32_t whole = Of(bytes);
  for (size_t first = 0; first <= bytes.size(); ++first) {
    const uint32_t begun = GetParam()(0, bytes.data(), first);
    EXPECT_EQ(GetParam()(begun, bytes.data() + first, bytes.size() - first), whole) << first;
  }
}

}  // namespace
}  // namespace baton
