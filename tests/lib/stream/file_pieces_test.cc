#include "lib/stream/file_pieces.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lib/base/crc32c.h"

namespace baton::stream {
namespace {

constexpr uint64_t kTransfer = 5;

std::vector<uint8_t> Message(const PieceHeader& header, const std::vector<uint8_t>& bytes) {
  std::vector<uint8_t> message(sizeof(header) + bytes.size());
  std::memcpy(message.data(), &header, sizeof(header));
  if (!bytes.empty()) std::memcpy(message.data() + sizeof(header), bytes.data(), bytes.size());
  return message;
}
PieceHeader HeaderOf(uint64_t offset, uint32_t length, uint32_t crc) {
  return {kPieceMagic, crc, kTransfer, offset, length, 0};
}

const std::vector<uint8_t> kOne = {1, 2, 3};
const std::vector<uint8_t> kTwo = {4, 5};
const uint32_t kCrcOfOne = Crc32c(0, kOne.data(), kOne.size());

absl::StatusCode CheckFirst(const std::vector<uint8_t>& message) {
  PieceChecker checker(kTransfer, 10, 5);
  const absl::StatusCode code = checker.Check(message).status().code();
  EXPECT_EQ(checker.next(), code == absl::StatusCode::kOk ? 13u : 10u);
  return code;
}

TEST(PieceHeader, shouldHaveTheBytesThatPeersRead) {
  EXPECT_EQ(kPieceMagic, 0x50464e42u);
  EXPECT_EQ(sizeof(PieceHeader), 32u);
  EXPECT_EQ(offsetof(PieceHeader, magic), 0u);
  EXPECT_EQ(offsetof(PieceHeader, crc), 4u);
  EXPECT_EQ(offsetof(PieceHeader, transfer), 8u);
  EXPECT_EQ(offsetof(PieceHeader, offset), 16u);
  EXPECT_EQ(offsetof(PieceHeader, length), 24u);
  EXPECT_EQ(offsetof(PieceHeader, flags), 28u);
  EXPECT_EQ(kPieceUnchecked, 1u);
}

TEST(PieceChecker, shouldTakePiecesInTheirOrder) {
  PieceChecker checker(kTransfer, 10, 5);
  EXPECT_FALSE(checker.done());
  const std::vector<uint8_t> first = Message(HeaderOf(10, 3, kCrcOfOne), kOne);
  const auto piece = checker.Check(first);
  ASSERT_TRUE(piece.ok()) << piece.status();
  EXPECT_EQ(piece->offset, 10u);
  EXPECT_EQ(std::vector<uint8_t>(piece->bytes.begin(), piece->bytes.end()), kOne);
  const uint32_t crc = Crc32c(kCrcOfOne, kTwo.data(), kTwo.size());
  EXPECT_TRUE(checker.Check(Message(HeaderOf(13, 2, crc), kTwo)).ok());
  EXPECT_TRUE(checker.done());
  EXPECT_EQ(checker.crc(), crc);
}

TEST(PieceChecker, shouldRefuseOtherPieces) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(CheckFirst(Message(HeaderOf(10, 3, kCrcOfOne), kOne)), absl::StatusCode::kOk);
  EXPECT_EQ(CheckFirst(Message(HeaderOf(11, 3, kCrcOfOne), kOne)), kInvalid);  // another place
  EXPECT_EQ(CheckFirst(Message(HeaderOf(10, 2, kCrcOfOne), kOne)), kInvalid);  // another length
  EXPECT_EQ(CheckFirst(Message(HeaderOf(10, 0, 0), {})), kInvalid);
  EXPECT_EQ(CheckFirst(Message(HeaderOf(10, 6, 0), std::vector<uint8_t>(6))),
            kInvalid);  // too long
  PieceHeader other = HeaderOf(10, 3, kCrcOfOne);
  other.transfer = kTransfer + 1;
  EXPECT_EQ(CheckFirst(Message(other, kOne)), kInvalid);
  other = HeaderOf(10, 3, kCrcOfOne);
  other.magic = 0;
  EXPECT_EQ(CheckFirst(Message(other, kOne)), kInvalid);
  EXPECT_EQ(CheckFirst({}), kInvalid);
}

TEST(PieceChecker, shouldSeeBytesThatHaveChanged) {
  std::vector<uint8_t> message = Message(HeaderOf(10, 3, kCrcOfOne), kOne);
  message.back() ^= 1;
  EXPECT_EQ(CheckFirst(message), absl::StatusCode::kDataLoss);
}

PieceHeader WithFlags(PieceHeader header, uint32_t flags) {
  header.flags = flags;
  return header;
}

// A sender may begin or cease to compute checksums when another program takes over from it.
TEST(PieceChecker, shouldTakePiecesWithoutAChecksumAndLeaveThemOut) {
  PieceChecker checker(kTransfer, 10, 5);
  const auto piece = checker.Check(Message(WithFlags(HeaderOf(10, 3, 0), kPieceUnchecked), kOne));
  ASSERT_TRUE(piece.ok()) << piece.status();
  EXPECT_FALSE(piece->is_checked);
  const uint32_t crc = Crc32c(0, kTwo.data(), kTwo.size());
  const auto next = checker.Check(Message(HeaderOf(13, 2, crc), kTwo));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(next->is_checked);
  EXPECT_EQ(checker.crc(), crc);
}

TEST(PieceChecker, shouldRefuseFlagsOfALaterRelease) {
  EXPECT_EQ(CheckFirst(Message(WithFlags(HeaderOf(10, 3, kCrcOfOne), 2), kOne)),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::stream
