// Protobuf messages, with file descriptors, over a UNIX stream socket. A frame is a 4-byte
// little-endian length and that many bytes; descriptors travel with the first byte of a frame, each
// of which is written by calls of its own. Those that come otherwise are closed.
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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "lib/base/file_descriptor.h"

namespace baton {

inline constexpr uint32_t kMaxFrameBytes = 16u << 20;
inline constexpr int kMaxFrameDescriptors = 8;

// A connected or listening UNIX stream socket at `path` (at most 107 bytes), close-on-exec.
// ListenUnix takes the place of a socket that nobody listens on any more; kAlreadyExists when
// somebody does, or when something else has that name. ConnectUnix waits, for at most `timeout_ms`
// (0: it does not), while the listener has as many connections waiting as its backlog holds; then
// kUnavailable. The socket is blocking.
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
  // The kernel says that it is the process that connected. Before Linux 6.5 it names that by its
  // number alone, which may have become another process's before the pidfd was taken: then
  // MessageChannel::AwaitSender says when it is known.
  bool certain = false;
};
// The process that connected. Taken when the connection is accepted: a number that is looked up
// later is even more likely another's. kNotFound: the process is dead.
absl::StatusOr<PeerProcess> GetPeerProcess(int socket);

// Whether the process that connected is in another pid namespace than this process, as in a
// container with one of its own, or cannot be judged. Nobody leaves such a namespace for one above
// it. Before Linux 6.5 it is about the process that has the number now.
bool IsPeerContained(int socket);

class MessageChannel {
 public:
  static constexpr int kSendTimeoutMs = 10'000;

  // `max_frame_bytes`: of what is received, from a side that is not to take more memory.
  explicit MessageChannel(FileDescriptor socket, uint32_t max_frame_bytes = kMaxFrameBytes)
      : socket_(std::move(socket)), max_frame_bytes_(max_frame_bytes) {}

  int fd() const { return socket_.get(); }

  // Blocking, for at most `timeout_ms` (-1: for ever). kUnavailable: the other side has closed.
  // kDeadlineExceeded, of Send: the other side does not read; the message counts as sent, and goes
  // on its way with the next call of any. Of Receive: nothing came; the channel stays usable.
  absl::Status Send(const google::protobuf::MessageLite& message,
                    const std::vector<int>& descriptors = {}, int timeout_ms = kSendTimeoutMs);
  absl::Status Receive(google::protobuf::MessageLite* message, int timeout_ms,
                       std::vector<FileDescriptor>* descriptors = nullptr);

  // For event loops. Fill reads what is there without blocking, up to a frame of the largest size
  // (kUnavailable: closed). NextFrame
  // takes a whole message out of what was read: false when there is none yet, an error when the
  // bytes are not a frame of this protocol. Its descriptors are closed if nobody wants them.
  absl::Status Fill();
  absl::StatusOr<bool> NextFrame(google::protobuf::MessageLite* message,
                                 std::vector<FileDescriptor>* descriptors = nullptr);

  // Queues a frame and writes what the socket takes without blocking; pending() tells that some is
  // left, to be written by Flush once the socket is writable. kResourceExhausted: the other side
  // does not read, more than `kMaxFrameBytes` are queued, or the system is short of what it takes.
  absl::Status Enqueue(const google::protobuf::MessageLite& message,
                       const std::vector<int>& descriptors = {});
  absl::Status Flush();
  bool pending() const { return !output_.empty(); }

  // Has Fill look for bytes that process `pid` sends from now on; sender_seen(): some have come. A
  // process whose pidfd was taken before the call, by this number, and that is alive after
  // sender_seen(), has sent them: all the while it had the number, and nobody else.
  absl::Status AwaitSender(pid_t pid);
  bool sender_seen() const { return sender_seen_; }

 private:
  struct Output {
    std::string bytes;
    size_t written = 0;
    std::vector<FileDescriptor> descriptors;  // duplicates, closed once sent
  };

  // Descriptors, and the frame that begins so many bytes into the stream.
  struct Received {
    uint64_t frame;
    std::vector<FileDescriptor> descriptors;
  };

  absl::Status WriteSome(Output& output);
  absl::Status WriteQueued();
  absl::Status TakeBack(const absl::Status& why);
  absl::Status Break(const absl::Status& why);
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
  absl::Status broken_;  // why nothing goes out any more
  pid_t awaited_sender_ = 0;
  bool emptied_ = false;  // since AwaitSender: what comes was sent after it
  bool sender_seen_ = false;
};

}  // namespace baton

#endif  // LIB_CHANNEL_MESSAGE_CHANNEL_H_
