// Carries protobuf messages, with file descriptors, over a UNIX stream socket. A frame is a 4-byte
// little-endian length and that many bytes. Each frame is written by calls of its own, and its
// descriptors travel with its first byte. The receiver closes descriptors that come otherwise.
//
// A refused message is never sent, in whole or in part. If the channel cannot keep that promise, or
// cannot send a message that it took, it ends: the other side sees it closed, and every later call
// returns kUnavailable after the messages that had arrived.
//
// Thread-compatible.
#ifndef LIB_CHANNEL_MESSAGE_CHANNEL_H_
#define LIB_CHANNEL_MESSAGE_CHANNEL_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "lib/base/closer.h"
#include "lib/base/file_descriptor.h"

namespace baton {

inline constexpr uint32_t kMaxFrameBytes = 16u << 20;
inline constexpr int kMaxFrameDescriptors = 8;

// Both return a UNIX stream socket at `path` (at most 107 bytes), close-on-exec. ListenUnix
// replaces a socket on which no process listens any more. kAlreadyExists: a process listens on it,
// or `path` is no socket. ConnectUnix waits for at most `timeout_ms` (0: not at all) while the
// listener's backlog is full. kUnavailable: it still is, or no process listens. A connected socket
// is blocking, a listening one is not.
inline constexpr int kConnectTimeoutMs = 2000;
absl::StatusOr<FileDescriptor> ConnectUnix(const std::string& path,
                                           int timeout_ms = kConnectTimeoutMs);
absl::StatusOr<FileDescriptor> ListenUnix(const std::string& path, int backlog, uint32_t mode);

struct PeerCredentials {
  int32_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
};
absl::StatusOr<PeerCredentials> GetPeerCredentials(int socket);

struct PeerProcess {
  FileDescriptor pidfd;
  // True: the kernel says that this is the process that connected. Before Linux 6.5 the kernel only
  // names the process's id, which may have become another's before the pidfd was opened.
  // MessageChannel::AwaitSender then tells when it is certain.
  bool certain = false;
};
// Returns the process that connected. Call it when the connection is accepted: later, the id is
// even more likely another process's. kNotFound: the process is dead.
absl::StatusOr<PeerProcess> GetPeerProcess(int socket);

// Returns true if the process that connected is in another pid namespace than this process, such as
// a container's, or if that cannot be found out. No process leaves such a namespace for one above
// it. Before Linux 6.5 the result is about the process that has the id now.
bool IsPeerContained(int socket);

class MessageChannel {
 public:
  static constexpr int kSendTimeoutMs = 10'000;

  // `max_frame_bytes` limits the frames that are received, and so the memory that the other side
  // can use up here.
  explicit MessageChannel(FileDescriptor socket, uint32_t max_frame_bytes = kMaxFrameBytes)
      : socket_(std::move(socket)), max_frame_bytes_(max_frame_bytes) {}

  int fd() const { return socket_.get(); }
  // The channel is of no use afterwards.
  FileDescriptor Release() { return std::move(socket_); }

  // Limits the bytes of the messages that wait because the other side does not read, of which one
  // may be longer.
  void LimitQueue(size_t bytes) { max_queued_bytes_ = bytes; }

  // Call it before anything is received. Once descriptors come, Fill reads nothing any more and
  // returns kInvalidArgument. It does not close them, because that may wait.
  void TakeNoDescriptors() {
    takes_ = Takes::kNone;
    KeepInLine(socket_.get());
  }
  // From now on a frame may come with one descriptor. The channel closes none that it has taken: it
  // leaves them to CloseLater(). Descriptors that come otherwise stay in the socket, and Fill
  // returns kInvalidArgument. While this process has no free descriptor for one, Fill returns
  // kResourceExhausted. REQUIRES: TakeNoDescriptors was called.
  void TakeOneDescriptor() { takes_ = Takes::kOne; }

  // Both block for at most `timeout_ms` (-1: for ever). kUnavailable: the other side has closed.
  // kDeadlineExceeded of Send: the other side does not read; the message counts as sent, and the
  // next Send, Receive or Flush goes on writing it. kDeadlineExceeded of Receive: nothing came; the
  // channel stays usable.
  absl::Status Send(const google::protobuf::MessageLite& message,
                    const std::vector<int>& descriptors = {}, int timeout_ms = kSendTimeoutMs);
  absl::Status Receive(google::protobuf::MessageLite* message, int timeout_ms,
                       std::vector<FileDescriptor>* descriptors = nullptr);

  // Both are for event loops. Fill reads what is there without blocking, up to a frame of the
  // largest size. kUnavailable: the channel is closed. NextFrame takes a whole message out of what
  // was read. It returns false if there is none yet, and an error if the bytes are not a frame of
  // this protocol. It closes the message's descriptors if `descriptors` is null.
  absl::Status Fill();
  absl::StatusOr<bool> NextFrame(google::protobuf::MessageLite* message,
                                 std::vector<FileDescriptor>* descriptors = nullptr);
  // The same after TakeOneDescriptor. `passed` is empty if no descriptor came with the message.
  absl::StatusOr<bool> NextFrameWithOne(google::protobuf::MessageLite* message,
                                        PassedDescriptor* passed);

  // Queues a frame and writes what the socket takes without blocking. If pending(), some is left,
  // and the caller calls Flush once the socket is writable. kResourceExhausted: the message is too
  // long, more than `kMaxFrameBytes` (see LimitQueue) would be queued because the other side does
  // not read, or the system lacks resources.
  absl::Status Enqueue(const google::protobuf::MessageLite& message,
                       const std::vector<int>& descriptors = {});
  absl::Status Flush();
  bool pending() const { return !output_.empty(); }

  // Makes Fill look for bytes that process `pid` sends from now on; sender_seen() returns true once
  // some have come. If a pidfd was opened for `pid` before this call, and its process is alive
  // after sender_seen(), that process has sent them: no other had the id in between.
  absl::Status AwaitSender(pid_t pid);
  bool sender_seen() const { return sender_seen_; }

 private:
  struct Output {
    std::string bytes;
    size_t written = 0;
    std::vector<FileDescriptor> descriptors = {};  // duplicates, closed once sent
  };

  enum class Takes : uint8_t { kAny, kOne, kNone };

  // Descriptors, and where their frame begins, in bytes of the stream.
  struct Received {
    uint64_t frame = 0;
    std::vector<FileDescriptor> descriptors = {};
    PassedDescriptor passed = {};  // after TakeOneDescriptor, in their place
  };

  absl::Status WriteSome(Output& output, const std::vector<int>& descriptors);
  absl::Status WriteQueued();
  absl::Status TakeBack(const absl::Status& why);
  absl::Status Break(const absl::Status& why);
  ssize_t Read(msghdr* header, PassedDescriptor* passed);
  absl::Status NoteDescriptors(msghdr* header, size_t old_size, PassedDescriptor passed);
  absl::StatusOr<bool> TakeFrame(google::protobuf::MessageLite* message, Received* with);
  static absl::Status TakeDescriptors(msghdr* header, std::vector<FileDescriptor>* taken);
  void NoteSender(msghdr* header);
  uint32_t LengthAt(size_t position) const;
  uint64_t LastFrame() const;

  FileDescriptor socket_;
  uint32_t max_frame_bytes_;
  std::string input_;
  size_t input_start_ = 0;
  uint64_t taken_ = 0;  // bytes of the stream before input_start_
  std::deque<Received> received_;
  std::deque<Output> output_;
  size_t output_bytes_ = 0;
  size_t max_queued_bytes_ = kMaxFrameBytes;
  absl::Status broken_;  // why nothing goes out any more
  Takes takes_ = Takes::kAny;
  pid_t awaited_sender_ = 0;
  bool emptied_ = false;  // the input was, since AwaitSender: later bytes were sent after it
  bool sender_seen_ = false;
};

}  // namespace baton

#endif  // LIB_CHANNEL_MESSAGE_CHANNEL_H_
