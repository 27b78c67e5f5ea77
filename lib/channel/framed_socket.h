// A socket with a MessageChannel, on an Asio loop.
#ifndef LIB_CHANNEL_FRAMED_SOCKET_H_
#define LIB_CHANNEL_FRAMED_SOCKET_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"

namespace baton {

// Thread-compatible: the loop's thread. Callbacks are not called after Close.
class FramedSocket : public std::enable_shared_from_this<FramedSocket> {
 public:
  struct Limits {
    uint32_t frame_bytes = kMaxFrameBytes;  // of a frame that is received
    size_t text_bytes = SIZE_MAX;           // of a text that is sent: Send cuts a longer one
    size_t queued_bytes = kMaxFrameBytes;   // that wait because the other side does not read
    // Descriptors that come close the socket, and none is closed in the loop's thread. After
    // MessageChannel::TakeOneDescriptor, one at a time may come. It waits in the socket while this
    // process has no free descriptor.
    bool refuses_descriptors = false;
  };

  FramedSocket(boost::asio::io_context& loop, FileDescriptor socket, const Limits& limits);
  ~FramedSocket();

  // The loop calls `on_frame` when bytes have come. It handles one frame of the channel and returns
  // true, or false if there is no whole one; an error closes the socket. Once it is
  // closed, the loop calls `on_closed` once, with the reason.
  void Start(std::function<absl::StatusOr<bool>()> on_frame,
             std::function<void(absl::Status)> on_closed);
  // Sends a message. Replaces text that is not valid UTF-8, so that the other side can parse it. If
  // sending fails, the socket is closed, and the loop calls `on_closed`.
  void Send(const google::protobuf::MessageLite& message, const std::vector<int>& descriptors = {});
  // The same, but the socket survives kResourceExhausted (the other side does not read, or the
  // system is short of resources): only this message is not sent.
  absl::Status TrySend(const google::protobuf::MessageLite& message,
                       const std::vector<int>& descriptors = {});
  // Call it in `on_frame`, which is not called again before Resume. Until then the other side's end
  // is not noticed, and the caller keeps this object.
  void Pause() { paused_ = true; }
  void Resume();
  void Close();

  MessageChannel& channel() { return channel_; }

 private:
  void AwaitInput();
  void HandleFrames(const absl::Status& filled);
  void HandleFramesLater(const absl::Status& filled);
  void AwaitOutput();
  void FailLater(const absl::Status& why);
  void Fail(const absl::Status& why);

  const Limits limits_;
  MessageChannel channel_;
  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::steady_timer pause_;
  std::function<absl::StatusOr<bool>()> on_frame_;
  std::function<void(absl::Status)> on_closed_;
  bool awaiting_output_ = false;
  bool paused_ = false;
  absl::Status filled_;  // result of the last Fill before the pause
};

}  // namespace baton

#endif  // LIB_CHANNEL_FRAMED_SOCKET_H_
