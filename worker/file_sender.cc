#include "worker/file_sender.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/crash_point.h"
#include "lib/base/crc32c.h"
#include "lib/base/status.h"
#include "worker/heap.h"
#include "worker/work_requests.h"

namespace baton {
namespace {

constexpr uint32_t kPageBytes = 4096;
constexpr uint32_t kMostDepth = 64;
constexpr uint32_t kHeaderBytes = sizeof(stream::PieceHeader);
// The peer can release some pieces while others come.
constexpr uint32_t kPiecesPerRing = 4;
constexpr int kRounds = 2;

bool IsSameFile(const FileTransfer& one, const FileTransfer& other) {
  return one.device == other.device && one.inode == other.inode && one.size == other.size &&
         one.mtime_seconds == other.mtime_seconds &&
         one.mtime_nanoseconds == other.mtime_nanoseconds;
}

// A read by O_DIRECT writes into memory by the device, even after the process is gone.
absl::Status PrepareDescriptor(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return ErrnoStatus(errno, "file: fcntl");
  if ((flags & O_ACCMODE) == O_WRONLY || (flags & O_PATH) != 0) {
    return Invalid("file: it is not open for reading");
  }
  if ((flags & O_DIRECT) != 0) {
    return Invalid(
        "file: it is open with O_DIRECT, and the device could write into memory after the worker's "
        "death: open it without");
  }
  // A read of what is not in memory would fail instead of waiting in the kernel.
  if ((flags & O_NONBLOCK) != 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "file: fcntl");
  }
  return absl::OkStatus();
}

}  // namespace

FileSender::FileSender(FileReads& reads, Connection& connection, FileDescriptor file,
                       const FileTransfer& state, std::function<void()> wake,
                       const Options& options)
    : reads_(reads),
      connection_(&connection),
      file_(std::move(file)),
      options_(options),
      state_(state),
      read_to_(state.next),
      requester_(&reads, &connection.shard(), std::move(wake)) {
  pieces_.reserve(options.depth);
}

FileSender::~FileSender() = default;

absl::StatusOr<FileTransfer> FileSender::Identify(int fd) {
  BATON_RETURN_IF_ERROR(PrepareDescriptor(fd));
  struct stat file = {};
  if (fstat(fd, &file) != 0) return ErrnoStatus(errno, "file: fstat");
  if (!S_ISREG(file.st_mode)) return Invalid("file: it is not a regular file");
  FileTransfer identity = {};
  identity.version = kFileTransferVersion;
  identity.device = file.st_dev;
  identity.inode = file.st_ino;
  identity.size = static_cast<uint64_t>(file.st_size);
  identity.mtime_seconds = file.st_mtim.tv_sec;
  identity.mtime_nanoseconds = static_cast<uint32_t>(file.st_mtim.tv_nsec);
  return identity;
}

absl::Status FileSender::Check(const FileReads& reads, const Connection& connection,
                               const Options& options) {
  if (&connection.shard().worker() != &reads.worker()) {
    return Invalid("reads: they are another worker's than the connection is");
  }
  return CheckOptions(options);
}

absl::Status FileSender::CheckOptions(const Options& options) {
  if (options.piece_bytes < kPageBytes || options.piece_bytes > FileReads::kMostPieceBytes ||
      options.piece_bytes % kPageBytes != 0) {
    return Invalid("piece_bytes: ", options.piece_bytes, ": choose a multiple of ", kPageBytes,
                   " up to ", FileReads::kMostPieceBytes);
  }
  if (options.depth < 1 || options.depth > kMostDepth) {
    return Invalid("depth: ", options.depth, ", 1 to ", kMostDepth);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileSender>> FileSender::Begin(
    FileReads& reads, Connection& connection, FileDescriptor file, const Range& range,
    std::function<void()> wake, const Options& options) {
  BATON_RETURN_IF_ERROR(Check(reads, connection, options));
  if (!wake) return Invalid("wake: it is empty");
  BATON_ASSIGN_OR_RETURN(FileTransfer state, Identify(file.get()));
  if (range.offset > state.size || range.length > state.size - range.offset) {
    return absl::OutOfRangeError(absl::StrCat("the file has ", state.size, " bytes, and ",
                                              range.length, " from byte ", range.offset,
                                              " were asked for"));
  }
  state.transfer = range.transfer;
  state.next = range.offset;
  state.end = range.offset + range.length;
  return std::unique_ptr<FileSender>(
      new FileSender(reads, connection, std::move(file), state, std::move(wake), options));
}

absl::StatusOr<std::unique_ptr<FileSender>> FileSender::Load(
    FileReads& reads, Connection& connection, FileDescriptor file, const FileTransfer& state,
    std::function<void()> wake, const Options& options) {
  BATON_RETURN_IF_ERROR(Check(reads, connection, options));
  if (!wake) return Invalid("wake: it is empty");
  if (state.version != kFileTransferVersion || state.next > state.end || state.end > state.size) {
    return absl::DataLossError(absl::StrCat("connection ", connection.index(),
                                            ": its state is not a transfer's of version ",
                                            kFileTransferVersion));
  }
  BATON_ASSIGN_OR_RETURN(const FileTransfer identity, Identify(file.get()));
  if (!IsSameFile(identity, state)) {
    return absl::FailedPreconditionError(absl::StrCat("the file is another one than transfer ",
                                                      state.transfer,
                                                      " began with, or was changed: begin anew"));
  }
  std::unique_ptr<FileSender> loaded(
      new FileSender(reads, connection, std::move(file), state, std::move(wake), options));
  reads.WakeSoon(loaded->requester_);
  return loaded;
}

absl::Status FileSender::CheckUnchanged() const {
  BATON_ASSIGN_OR_RETURN(const FileTransfer identity, Identify(file_.get()));
  if (IsSameFile(identity, state_)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the file was changed while it was sent, from byte ", state_.next, " on: begin anew"));
}

// The second round sends what was in the kernel's memory, and so was read at once.
absl::Status FileSender::Advance(Stream& stream) {
  for (int round = 0; round < kRounds; ++round) {
    BATON_RETURN_IF_ERROR(StagePieces(stream));
    if (done()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const bool has_started, StartReads(stream));
    if (!has_started) return absl::OkStatus();
    reads_.Submit(requester_);
  }
  return StagePieces(stream);
}

// Another message of the application may have taken the room that was there when the reads began.
// Pieces that cannot be sent are read again later, so that no memory waits for a peer.
absl::Status FileSender::StagePieces(Stream& stream) {
  size_t staged = 0;
  absl::Status status;
  while (staged < pieces_.size() && status.ok()) {
    const Piece& piece = pieces_[staged];
    const FileReads::Progress progress = reads_.ProgressOf(piece.read);
    if (progress == FileReads::Progress::kUnderWay) break;
    status =
        progress == FileReads::Progress::kRead ? Stage(stream, piece) : reads_.ErrorOf(piece.read);
    if (status.ok()) ++staged;
  }
  pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<ptrdiff_t>(staged));
  if (!absl::IsResourceExhausted(status)) return status;
  const uint32_t length = pieces_.front().length + kHeaderBytes;
  DropPieces();
  if (stream.RoomFor(length, 1) > 0) reads_.RetryLater(requester_);  // the transaction is full
  return absl::OkStatus();
}

// The heap gives the memory to nobody else before the send has completed.
absl::Status FileSender::Stage(Stream& stream, const Piece& piece) {
  BATON_CRASH_POINT("file-piece-read");
  if (state_.next + piece.length == state_.end) BATON_RETURN_IF_ERROR(CheckUnchanged());
  uint8_t* const at = connection_->shard().heap().At(piece.read.memory);
  const uint32_t crc = Crc32c(state_.crc, at + kHeaderBytes, piece.length);
  const stream::PieceHeader header = {stream::kPieceMagic, crc,          state_.transfer,
                                      state_.next,         piece.length, 0};
  std::memcpy(at, &header, sizeof(header));
  BATON_RETURN_IF_ERROR(stream.Send({&piece.read.memory, 1}));
  state_.crc = crc;
  state_.next += piece.length;
  reads_.Release(piece.read);
  BATON_CRASH_POINT("file-piece-staged");
  return absl::OkStatus();
}

uint32_t FileSender::NextLength(const Stream& stream) const {
  const uint32_t ring = stream.peer_ring_bytes() / kPiecesPerRing;
  const uint32_t most =
      std::min({options_.piece_bytes, ring, stream.longest_message()}) - kHeaderBytes;
  return static_cast<uint32_t>(std::min<uint64_t>(most, state_.end - read_to_));
}

// Returns whether a read has begun. If not, an event or a wake follows when to try again.
absl::StatusOr<bool> FileSender::StartReads(Stream& stream) {
  const size_t before = pieces_.size();
  while (pieces_.size() < options_.depth && read_to_ < state_.end) {
    const uint32_t length = NextLength(stream);
    // Only the last piece of a transfer is shorter than those before it.
    const uint32_t longest = pieces_.empty() ? length : std::max(length, pieces_.front().length);
    const auto count = static_cast<uint32_t>(pieces_.size() + 1);
    if (stream.RoomFor(longest + kHeaderBytes, count) < count) {
      if (!pieces_.empty()) break;
      const absl::StatusOr<bool> has_room = stream.AwaitRoom(length + kHeaderBytes);
      if (absl::IsResourceExhausted(has_room.status())) {
        reads_.RetryLater(requester_);
        return false;
      }
      BATON_RETURN_IF_ERROR(has_room.status());
      break;
    }
    const absl::StatusOr<FileReads::Piece> read =
        reads_.Start(requester_, file_.get(), read_to_, kHeaderBytes, length);
    if (absl::IsResourceExhausted(read.status())) break;
    BATON_RETURN_IF_ERROR(read.status());
    pieces_.push_back({*read, length});
    read_to_ += length;
  }
  return pieces_.size() > before;
}

void FileSender::DropPieces() {
  for (const Piece& piece : pieces_) reads_.Release(piece.read);
  pieces_.clear();
  read_to_ = state_.next;
}

}  // namespace baton
