#include "lib/stream/file_pieces.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/crc32c.h"

namespace baton::stream {

bool IsPiece(absl::Span<const uint8_t> message) {
  uint32_t magic = 0;
  if (message.size() < sizeof(PieceHeader)) return false;
  std::memcpy(&magic, message.data(), sizeof(magic));
  return magic == kPieceMagic;
}

absl::StatusOr<PieceChecker::Piece> PieceChecker::Check(absl::Span<const uint8_t> message) {
  if (!IsPiece(message)) return absl::InvalidArgumentError("the message is no piece of a file");
  PieceHeader header;
  std::memcpy(&header, message.data(), sizeof(header));
  const absl::Span<const uint8_t> bytes = message.subspan(sizeof(header));
  if (header.transfer != transfer_ || header.offset != next_ || header.length != bytes.size() ||
      bytes.empty() || bytes.size() > end_ - next_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of transfer ", header.transfer, " with ", bytes.size(),
                     " bytes from byte ", header.offset, " came, and byte ", next_, " of transfer ",
                     transfer_, ", which ends at ", end_, ", is next"));
  }
  if ((header.flags & ~kPieceUnchecked) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of transfer ", transfer_, " has the flags ", header.flags,
                     ", of which this release knows 1: the sender is a later one"));
  }
  const bool is_checked = (header.flags & kPieceUnchecked) == 0;
  const uint32_t crc = is_checked ? Crc32c(crc_, bytes.data(), bytes.size()) : crc_;
  if (crc != header.crc) {
    return absl::DataLossError(absl::StrCat("the checksum of transfer ", transfer_, " up to byte ",
                                            next_ + bytes.size(), " is wrong"));
  }
  crc_ = crc;
  next_ += bytes.size();
  return Piece{header.offset, bytes, is_checked};
}

}  // namespace baton::stream
