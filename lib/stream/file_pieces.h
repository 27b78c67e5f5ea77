// The messages in which a range of a file is sent over a stream, for both of its ends.
#ifndef LIB_STREAM_FILE_PIECES_H_
#define LIB_STREAM_FILE_PIECES_H_

#include <cstdint>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::stream {

inline constexpr uint32_t kPieceMagic = 0x50464e42;  // "BNFP"
// A flag of a piece that no checksum covers: its `crc` is that of the piece before it.
inline constexpr uint32_t kPieceUnchecked = 1;

// A message begins with this, and the piece's bytes follow. Little-endian.
struct PieceHeader {
  uint32_t magic;  // kPieceMagic
  // CRC32C of the range from its first byte to the last one of this piece, without what was sent
  // unchecked.
  uint32_t crc;
  uint64_t transfer;  // as the sender has numbered it
  uint64_t offset;    // in the file, of the first byte that follows
  uint32_t length;    // bytes that follow, at least 1
  uint32_t flags;     // kPieceUnchecked or 0
};
static_assert(sizeof(PieceHeader) == 32);
static_assert(std::is_trivially_copyable_v<PieceHeader>);

// Returns whether the message begins as a piece does. Other messages of the application must not.
bool IsPiece(absl::Span<const uint8_t> message);

// The receiver's side of one transfer. It keeps no bytes.
class PieceChecker {
 public:
  // The range has `length` bytes from `offset` of the file.
  PieceChecker(uint64_t transfer, uint64_t offset, uint64_t length)
      : transfer_(transfer), next_(offset), end_(offset + length) {}

  struct Piece {
    uint64_t offset = 0;              // in the file
    absl::Span<const uint8_t> bytes;  // of the message
    bool is_checked = true;
  };
  // Returns the bytes of the next piece. kInvalidArgument: the message is no piece, or another one
  // than the next of this transfer. kDataLoss: the bytes are not those that were read.
  absl::StatusOr<Piece> Check(absl::Span<const uint8_t> message);

  uint64_t next() const { return next_; }
  bool done() const { return next_ == end_; }
  uint32_t crc() const { return crc_; }  // of what has come and was checked

 private:
  uint64_t transfer_, next_, end_;
  uint32_t crc_ = 0;
};

}  // namespace baton::stream

#endif  // LIB_STREAM_FILE_PIECES_H_
