#include "lib/channel/framed_socket.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "lib/base/closer.h"
#include "lib/channel/waits.h"
#include "lib/text/message_text.h"

namespace baton {

using boost::asio::posix::stream_descriptor;

namespace {

// The most frames of one socket that are handled before the loop serves other sockets and the
// deaths of processes.
constexpr int kFramesPerTurn = 8;
// The time between two looks for a free descriptor.
constexpr std::chrono::milliseconds kPause(100);

}  // namespace

FramedSocket::FramedSocket(boost::asio::io_context& loop, FileDescriptor socket,
                           const Limits& limits)
    : limits_(limits),
      channel_(std::move(socket), limits.frame_bytes),
      descriptor_(loop, channel_.fd()),
      pause_(loop) {
  channel_.LimitQueue(limits.queued_bytes);
  if (limits.refuses_descriptors) channel_.TakeNoDescriptors();
}

// A loop that ends with its process does not end the connection, which another process may have.
FramedSocket::~FramedSocket() {
  if (descriptor_.is_open()) descriptor_.release();  // the channel closes it
}

void FramedSocket::Start(std::function<absl::StatusOr<bool>()> on_frame,
                         std::function<void(absl::Status)> on_closed) {
  on_frame_ = std::move(on_frame);
  on_closed_ = std::move(on_closed);
  AwaitInput();
}

void FramedSocket::AwaitInput() {
  descriptor_.async_wait(stream_descriptor::wait_read,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           if (error || !self->on_frame_) return;
                           self->HandleFrames(self->channel_.Fill());
                         });
}

void FramedSocket::HandleFrames(const absl::Status& filled) {
  const auto on_frame = on_frame_;  // it may close the socket
  for (int i = 0; i < kFramesPerTurn && on_frame_; ++i) {
    const absl::StatusOr<bool> handled = on_frame();
    if (!handled.ok()) return Fail(handled.status());
    if (paused_) {
      filled_ = filled;
      return;
    }
    if (*handled) continue;
    // The socket stays readable.
    if (limits_.refuses_descriptors && absl::IsResourceExhausted(filled)) {
      return After(pause_, kPause, [self = shared_from_this()] {
        if (self->on_frame_) self->AwaitInput();
      });
    }
    // The frames that arrived before the end were handled above.
    if (!filled.ok()) return Fail(filled);
    if (on_frame_) AwaitInput();
    return;
  }
  HandleFramesLater(filled);
}

void FramedSocket::HandleFramesLater(const absl::Status& filled) {
  boost::asio::post(descriptor_.get_executor(), [self = shared_from_this(), filled] {
    if (self->on_frame_) self->HandleFrames(filled);
  });
}

void FramedSocket::Resume() {
  paused_ = false;
  HandleFramesLater(filled_);
}

void FramedSocket::Send(const google::protobuf::MessageLite& message,
                        const std::vector<int>& descriptors) {
  const absl::Status sent = TrySend(message, descriptors);
  if (absl::IsResourceExhausted(sent)) FailLater(sent);
}

absl::Status FramedSocket::TrySend(const google::protobuf::MessageLite& message,
                                   const std::vector<int>& descriptors) {
  const auto* const whole = dynamic_cast<const google::protobuf::Message*>(&message);
  std::unique_ptr<google::protobuf::Message> mended;
  if (whole != nullptr && !HasValidText(*whole, limits_.text_bytes)) {
    mended.reset(whole->New());
    mended->CopyFrom(*whole);
    MakeTextValid(mended.get(), limits_.text_bytes);
  }
  absl::Status sent = channel_.Enqueue(mended ? *mended : message, descriptors);
  if (!sent.ok() && !absl::IsResourceExhausted(sent)) FailLater(sent);
  if (sent.ok() && channel_.pending()) AwaitOutput();
  return sent;
}

// Closes the socket from the loop, and not within the caller's call.
void FramedSocket::FailLater(const absl::Status& why) {
  boost::asio::post(descriptor_.get_executor(),
                    [self = shared_from_this(), why] { self->Fail(why); });
}

void FramedSocket::AwaitOutput() {
  if (awaiting_output_) return;
  awaiting_output_ = true;
  descriptor_.async_wait(stream_descriptor::wait_write,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           self->awaiting_output_ = false;
                           if (error || !self->on_frame_) return;
                           const absl::Status flushed = self->channel_.Flush();
                           if (!flushed.ok()) return self->Fail(flushed);
                           if (self->channel_.pending()) self->AwaitOutput();
                         });
}

void FramedSocket::Fail(const absl::Status& why) {
  const auto on_closed = std::move(on_closed_);
  Close();
  if (on_closed) on_closed(why);
}

void FramedSocket::Close() {
  on_frame_ = nullptr;
  on_closed_ = nullptr;
  if (!descriptor_.is_open()) return;
  descriptor_.release();  // the channel closes it
  if (limits_.refuses_descriptors) CloseConnection(channel_.Release());
}

}  // namespace baton
