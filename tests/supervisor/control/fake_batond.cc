#include "tests/supervisor/control/fake_batond.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/check.h"

namespace baton {

FakeBatond::FakeBatond() {
  reply_.set_status_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  reply_.set_status_message(
      "batond was started with --dev: there is no configuration to read again");
}

FileDescriptor FakeBatond::Connect() {
  Leave();
  int ends[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  channel_ = std::make_unique<MessageChannel>(FileDescriptor(ends[0]));
  thread_ = std::thread([this, channel = channel_.get()] { Answer(channel); });
  return FileDescriptor(ends[1]);
}

void FakeBatond::Leave() {
  if (!thread_.joinable()) return;
  shutdown(channel_->fd(), SHUT_RDWR);
  thread_.join();
}

void FakeBatond::SetReply(const internal::BatondReply& reply) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reply_ = reply;
}

void FakeBatond::Tell(internal::BatondReply reply) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reply.set_id(0);
  BATON_CHECK(channel_->Send(reply).ok());
}

void FakeBatond::Answer(MessageChannel* channel) {
  for (;;) {
    pollfd entry = {channel->fd(), POLLIN, 0};
    if (poll(&entry, 1, -1) < 0) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    internal::BatondRequest request;
    const absl::Status got = channel->Receive(&request, /*timeout_ms=*/0);
    if (absl::IsDeadlineExceeded(got)) continue;
    if (!got.ok()) return;
    internal::BatondReply reply = request.has_open() ? internal::BatondReply() : reply_;
    std::vector<int> descriptors;
    FileDescriptor file;
    if (request.has_open()) {
      file.Reset(open(request.open().path().c_str(), O_RDONLY | O_CLOEXEC));
      if (file) {
        descriptors.push_back(file.get());
      } else {
        reply.set_status_code(static_cast<int>(absl::StatusCode::kNotFound));
        reply.set_status_message("there is no such file");
      }
    }
    reply.set_id(request.id());
    if (!channel->Send(reply, descriptors).ok()) return;
  }
}

}  // namespace baton
