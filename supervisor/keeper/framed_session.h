// One client of a keeper's socket, on the management loop.
#ifndef SUPERVISOR_KEEPER_FRAMED_SESSION_H_
#define SUPERVISOR_KEEPER_FRAMED_SESSION_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "lib/channel/message_channel.h"

namespace baton::keeper {

// Thread-compatible: the loop's thread. Callbacks are not called after Close.
class FramedSession : public std::enable_shared_from_this<FramedSession> {
 public:
  FramedSession(boost::asio::io_context& loop, FileDescriptor socket, uint32_t max_frame_bytes);
  ~FramedSession();

  // `on_frame` handles one frame of the channel, if there is a whole one, and returns whether there
  // was; an error ends the session. `on_closed`: with why, once.
  void Start(std::function<absl::StatusOr<bool>()> on_frame,
             std::function<void(absl::Status)> on_closed);
  void Send(const google::protobuf::MessageLite& message, const std::vector<int>& descriptors = {});
  // After the call of `on_frame` in which Pause was called there is none before Resume, nor is the
  // other side's end noticed. The caller keeps the session alive until then.
  void Pause() { paused_ = true; }
  void Resume();
  void Close();

  MessageChannel& channel() { return channel_; }

 private:
  void AwaitInput();
  void HandleFrames(const absl::Status& filled);
  void HandleFramesLater(const absl::Status& filled);
  void AwaitOutput();
  void Fail(const absl::Status& why);

  MessageChannel channel_;
  boost::asio::posix::stream_descriptor descriptor_;
  std::function<absl::StatusOr<bool>()> on_frame_;
  std::function<void(absl::Status)> on_closed_;
  bool awaiting_output_ = false;
  bool paused_ = false;
  absl::Status filled_;  // when it was paused
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_FRAMED_SESSION_H_
