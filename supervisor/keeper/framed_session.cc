#include "supervisor/keeper/framed_session.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace baton::keeper {

using boost::asio::posix::stream_descriptor;

FramedSession::FramedSession(boost::asio::io_context& loop, FileDescriptor socket)
    : channel_(std::move(socket)), descriptor_(loop, channel_.fd()) {}

FramedSession::~FramedSession() { Close(); }

void FramedSession::Start(std::function<absl::StatusOr<bool>()> on_input,
                          std::function<void(absl::Status)> on_closed) {
  on_input_ = std::move(on_input);
  on_closed_ = std::move(on_closed);
  AwaitInput();
}

void FramedSession::AwaitInput() {
  descriptor_.async_wait(stream_descriptor::wait_read,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           if (error || !self->on_input_) return;
                           self->HandleInput(self->channel_.Fill());
                         });
}

// What arrived before the end still counts.
void FramedSession::HandleInput(const absl::Status& filled) {
  if (!on_input_) return;
  const auto on_input = on_input_;  // it may close the session
  const absl::StatusOr<bool> more = on_input();
  if (!more.ok()) return Fail(more.status());
  if (*more) {
    boost::asio::post(descriptor_.get_executor(),
                      [self = shared_from_this(), filled] { self->HandleInput(filled); });
    return;
  }
  if (!filled.ok()) return Fail(filled);
  if (on_input_) AwaitInput();
}

void FramedSession::Send(const google::protobuf::MessageLite& message,
                         const std::vector<int>& descriptors) {
  const absl::Status sent = channel_.Enqueue(message, descriptors);
  if (!sent.ok()) {
    // Reported from the loop, not from within the caller.
    boost::asio::post(descriptor_.get_executor(),
                      [self = shared_from_this(), sent] { self->Fail(sent); });
  } else if (channel_.pending()) {
    AwaitOutput();
  }
}

void FramedSession::AwaitOutput() {
  if (awaiting_output_) return;
  awaiting_output_ = true;
  descriptor_.async_wait(stream_descriptor::wait_write,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           self->awaiting_output_ = false;
                           if (error || !self->on_input_) return;
                           const absl::Status flushed = self->channel_.Flush();
                           if (!flushed.ok()) return self->Fail(flushed);
                           if (self->channel_.pending()) self->AwaitOutput();
                         });
}

void FramedSession::Fail(const absl::Status& why) {
  const auto on_closed = std::move(on_closed_);
  Close();
  if (on_closed) on_closed(why);
}

void FramedSession::Close() {
  on_input_ = nullptr;
  on_closed_ = nullptr;
  if (descriptor_.is_open()) descriptor_.release();  // the channel closes it
}

}  // namespace baton::keeper
