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
  FramedSession(boost::asio::io_context& loop, FileDescriptor socket);
  ~FramedSession();

  // Frames that `on_input` takes at most: who sends many must not keep the loop from the others.
  static constexpr int kFramesPerTurn = 16;

  // `on_input`: there may be frames in the channel; returns whether there may be more, to be called
  // again before more is read. An error ends the session. `on_closed`: with why, once.
  void Start(std::function<absl::StatusOr<bool>()> on_input,
             std::function<void(absl::Status)> on_closed);
  void Send(const google::protobuf::MessageLite& message, const std::vector<int>& descriptors = {});
  void Close();

  MessageChannel& channel() { return channel_; }

 private:
  void AwaitInput();
  void HandleInput(const absl::Status& filled);
  void AwaitOutput();
  void Fail(const absl::Status& why);

  MessageChannel channel_;
  boost::asio::posix::stream_descriptor descriptor_;
  std::function<absl::StatusOr<bool>()> on_input_;
  std::function<void(absl::Status)> on_closed_;
  bool awaiting_output_ = false;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_FRAMED_SESSION_H_
