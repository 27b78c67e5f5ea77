// Sends a range of a file to a peer over a stream, through a small pipeline of registered memory.
//
//   // A request has come: SetState holds the stream's state and the transfer's.
//   sender = …FileSender::Begin(*reads, connection, std::move(file), {transfer, offset, length},
//                               [this, &connection] { Wake(connection); }, {})…;
//   // In OnCompletion, after Stream::OnCompletion, and in Wake, with the stream loaded anew:
//   const absl::Status status = sender->Advance(stream);
//   …SetState(stream.state(), sender->state())…
//   if (sender->done()) sender.reset();
//
// The peer gets messages as lib/stream/file_pieces.h has them. The committed state says which byte
// is next, and it moves with the commit that sends the bytes before. If the owner dies, its
// successor opens the file, calls Load with the committed state, and goes on with that byte:
// nothing is sent twice, and nothing is missing. What the dead owner had read and not sent is read
// again.
//
// A transfer has registered memory for pieces whose reads are under way. A piece is sent as soon as
// it and those before it are read, and its memory is freed in the same transaction. No read begins
// that the peer has no room for, so a peer that gives no credit holds no memory.
//
// A change of the file ends the transfer. It shows in the file's size or its modification time. A
// change that keeps the size goes unnoticed if its writer sets that time back. It also does if the
// kernel stamps files by the tick of its clock (up to 10 ms), and the file had been changed in the
// same tick before the transfer began. The peer then gets a mixture. To replace a file, rename
// another one over it: that one has another inode.
//
// A memfd can be sent without a copy. If Options has a cache of regions, the memfd is registered,
// and pieces are sent from it. The checksum is of the bytes that this process sees before it stages
// a piece, so they must not change until the peer has them. Nobody notices a change of a memfd
// whose size is sealed: its time changes when it is registered, too.
#ifndef WORKER_FILE_SENDER_H_
#define WORKER_FILE_SENDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/mapped_memory.h"
#include "lib/stream/file_pieces.h"
#include "worker/file_reads.h"
#include "worker/held_files.h"
#include "worker/region_cache.h"
#include "worker/stream.h"
#include "worker/worker.h"

namespace baton {

// The application keeps this in the connection's state, beside the stream's. Little-endian. All
// bytes zero: no transfer.
struct FileTransfer {
  uint32_t version;  // kFileTransferVersion
  uint32_t crc;      // CRC32C of the range up to `next`, without what was sent unchecked
  uint64_t transfer;
  // The file's identity: st_dev, st_ino, st_size, st_mtim.
  uint64_t device;
  uint64_t inode;
  uint64_t size;
  int64_t mtime_seconds;
  uint32_t mtime_nanoseconds;
  uint32_t reserved;
  uint64_t next;  // the first byte that is not sent
  uint64_t end;
  uint64_t held;  // a descriptor that the driver holds for the successor; 0: none, see hold_status
};
static_assert(sizeof(FileTransfer) == 80);
static_assert(std::is_trivially_copyable_v<FileTransfer>);
inline constexpr uint32_t kFileTransferVersion = 1;

// One transfer on one connection. The service owns it. It must not outlive the FileReads, and it
// ends before the connection: destroy it in OnCompletion of kDisconnected, in OnRelease and in
// OnLost, and before Shard::Abandon is followed by another Load. Reads that are under way then are
// cancelled. Memory is allocated when a transfer begins.
//
// The file is held until all that was staged of it is acknowledged by the peer, whether this is
// destroyed before or not.
class FileSender {
 public:
  struct Options {
    // The longest message of a piece, with its header: a multiple of 4 KiB from 4 KiB to 1 MiB. A
    // peer gets shorter ones if four do not fit into its ring. 64 KiB: what a message costs is
    // small beside what its bytes cost, and the first bytes do not wait for many others.
    uint32_t piece_bytes = 64 << 10;
    // Pieces that are being read at once, 1 to 64. Four: while the reads of some are under way,
    // that of another has ended, and it is sent.
    uint32_t depth = 4;
    // The driver holds the file of a transfer of so many bytes or more before any of them is sent,
    // for which the keeper is asked while they are read. 1 MiB: what is shorter is sent sooner than
    // the keeper answers. UINT64_MAX: none is held.
    uint64_t hold_from_bytes = 1 << 20;
    // For memfds that are sealed with F_SEAL_SHRINK and F_SEAL_GROW, not with F_SEAL_WRITE or
    // F_SEAL_FUTURE_WRITE, and open for writing, too. Outlives the transfers. Call its TakeOver
    // when all shards have come. What is not in the cache is registered, for which the worker's
    // thread waits. Where that is refused, and for other files, there are reads. Null: there are
    // always reads.
    RegionCache* regions = nullptr;
    // Each piece has the checksum of the range up to its end, which the peer compares. False: the
    // peer takes the bytes as they come, as it does those of any other message. To compute it takes
    // this thread about a tenth of a nanosecond for each byte.
    bool checksums = true;
  };
  struct Range {
    uint64_t transfer = 0;  // the number with which the peer knows the transfer
    uint64_t offset = 0;    // in the file
    uint64_t length = 0;    // 0: the transfer is done at once, and no message is sent
  };

  // For a service that begins no transfer yet. Begin and Load check them, too.
  static absl::Status CheckOptions(const Options& options);

  // `file` is a regular file that is open for reading, without O_DIRECT. O_NONBLOCK is cleared.
  // `wake` calls Advance: see FileRequester.
  // kInvalidArgument: the message names what is wrong. kOutOfRange: the file has no such range.
  static absl::StatusOr<std::unique_ptr<FileSender>> Begin(FileReads& reads, Connection& connection,
                                                           FileDescriptor file, const Range& range,
                                                           std::function<void()> wake,
                                                           const Options& options);
  // Goes on with what was committed. Call it in OnAdopt for each connection that has a transfer:
  // no event may be due that would begin it. A service that calls it later tells HeldFiles::Keep of
  // the file. `wake` is called soon. If `file` is none, or another one than the transfer's, it goes
  // on with the file that the driver holds. Otherwise kNotFound: it is none, and the message says
  // why the driver's cannot be had. kFailedPrecondition: it is another file, or has been changed
  // since. kDataLoss: `state` is not a transfer's. IsForNow: the driver may have the file, and it
  // cannot be had now.
  static absl::StatusOr<std::unique_ptr<FileSender>> Load(FileReads& reads, Connection& connection,
                                                          FileDescriptor file,
                                                          const FileTransfer& state,
                                                          std::function<void()> wake,
                                                          const Options& options);
  // Returns true of a status with which the same call may succeed later.
  static bool IsForNow(const absl::Status& status) {
    return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
           absl::IsResourceExhausted(status);
  }
  ~FileSender();
  FileSender(const FileSender&) = delete;
  FileSender& operator=(const FileSender&) = delete;

  // Stages the pieces that are read, in order, and begins further reads, as far as the pipeline and
  // the peer's room allow. The first call orders that the file be held, or registers it, for which
  // it waits: a takeover must not wait for that. It stages one piece, or several of 1 MiB in all.
  // Call it after each event of the stream, and when woken. `stream` must be as it was staged or
  // committed last. Set the state afterwards, also after an error. An error ends the transfer. What
  // was staged before it is whole: tell the peer, and destroy this. kOutOfRange: the file ends
  // before the range does. kFailedPrecondition: it was changed meanwhile. Others: it cannot be
  // read.
  absl::Status Advance(Stream& stream);

  // All bytes are staged. They are sent with the transaction, and need no sender any more.
  bool done() const { return state_.next == state_.end; }
  const FileTransfer& state() const { return state_; }
  // Returns why the driver does not hold the file, which is no error: a successor has to open it.
  // OK: it does, or it was not asked to, or has not answered yet. The first Advance asks it.
  const absl::Status& hold_status() const { return hold_status_; }
  // The same for a region. OK: pieces are sent from one, or it was not asked for.
  const absl::Status& region_status() const { return region_status_; }
  bool uses_region() const { return static_cast<bool>(region_); }
  // For a service that has called Worker::HoldDescriptor by itself: Load takes this one, and the
  // service drops it. What Advance has held is dropped. 0: changes nothing. Staged with the next
  // SetState.
  void SetHeld(uint64_t held);
  int fd() const { return file_.get(); }

 private:
  struct Piece {
    FileReads::Piece read;
    uint32_t length = 0;  // without its header
  };

  FileSender(FileReads& reads, Connection& connection, FileDescriptor file,
             const FileTransfer& state, std::function<void()> wake, const Options& options);

  static absl::StatusOr<FileTransfer> Identify(int fd);
  static absl::Status CheckSame(int fd, const FileTransfer& state);
  static absl::Status FindFile(FileReads& reads, const FileTransfer& state, FileDescriptor* file);
  static absl::Status Check(const FileReads& reads, const Connection& connection,
                            const Options& options);
  void HoldOnce();
  void TakeHeld();
  void TakeRegionOnce();
  absl::Status Register();
  absl::Status CheckUnchanged() const;
  stream::PieceHeader HeaderOf(const uint8_t* bytes, uint32_t length) const;
  absl::Status SendFromRegion(Stream& stream, uint64_t room);
  absl::Status StageFromRegion(Stream& stream, uint32_t length);
  absl::Status StagePieces(Stream& stream, uint64_t* room);
  absl::Status Stage(Stream& stream, const Piece& piece);
  absl::StatusOr<bool> StartReads(Stream& stream);
  uint32_t NextLength(const Stream& stream) const;
  void DropPieces();

  FileReads& reads_;
  Connection* const connection_;
  const FileDescriptor file_;
  const Options options_;
  FileTransfer state_;
  uint64_t read_to_;           // reads of what lies before have begun
  std::vector<Piece> pieces_;  // that are being read, in the file's order; at most `depth`
  bool may_hold_ = true, may_take_region_ = true;
  absl::Status hold_status_, region_status_;
  RegionCache::Lease region_;
  MappedMemory mapped_;                      // the whole file, if there is a region
  FileRequester requester_;                  // behind what it uses: cancels what is under way
  std::unique_ptr<HeldFiles::Order> order_;  // that the file be held; null: none, or it is done
};

}  // namespace baton

#endif  // WORKER_FILE_SENDER_H_
