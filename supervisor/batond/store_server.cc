#include "supervisor/batond/store_server.h"

#include <sys/socket.h>

#include <utility>
#include <vector>

#include "lib/base/status_macros.h"
#include "spdlog/spdlog.h"

namespace baton {

StoreServer::StoreServer(boost::asio::io_context& io, std::string keeper, FileDescriptor socket,
                         DescriptorStore& store)
    : keeper_(std::move(keeper)),
      store_(store),
      channel_(std::move(socket)),
      readable_(io, channel_.fd()) {
  Wait();
}

StoreServer::~StoreServer() {
  // What the keeper had asked for is still there when its end is heard of first.
  (void)ServeAll();
  if (readable_.is_open()) readable_.release();
}

void StoreServer::Wait() {
  readable_.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr<char>(alive_)](const boost::system::error_code& error) {
        if (error || alive.expired()) return;
        const absl::Status status = ServeAll();
        if (absl::IsDeadlineExceeded(status)) return Wait();  // all is served
        if (!absl::IsUnavailable(status)) {
          spdlog::error("{}: its store channel is closed: {}", keeper_, status.ToString());
        }
        // The keeper is to hear of it, who would wait for answers.
        shutdown(readable_.release(), SHUT_RDWR);
      });
}

absl::Status StoreServer::ServeAll() {
  for (;;) {
    internal::StoreRequest request;
    std::vector<FileDescriptor> descriptors;
    BATON_RETURN_IF_ERROR(channel_.Receive(&request, /*timeout_ms=*/0, &descriptors));
    BATON_RETURN_IF_ERROR(Serve(request, std::move(descriptors)));
  }
}

absl::Status StoreServer::Serve(const internal::StoreRequest& request,
                                std::vector<FileDescriptor> descriptors) {
  absl::Status status = absl::InvalidArgumentError("a store request of an unknown kind");
  internal::StoreReply reply;
  std::vector<int> answer;
  switch (request.request_case()) {
    case internal::StoreRequest::kPut:
      status = store_.Put(request.put().name(), std::move(descriptors));
      break;
    case internal::StoreRequest::kGet: {
      absl::StatusOr<std::vector<int>> found = store_.Get(request.get().name());
      status = found.status();
      if (found.ok()) answer = *std::move(found);
      break;
    }
    case internal::StoreRequest::kDrop:
      status = store_.Drop(request.drop().name());
      break;
    case internal::StoreRequest::kList:
      status = absl::OkStatus();
      for (std::string& name : store_.List()) reply.add_names(std::move(name));
      break;
    case internal::StoreRequest::REQUEST_NOT_SET:
      break;
  }
  reply.set_status_code(static_cast<int>(status.code()));
  reply.set_status_message(std::string(status.message()));
  absl::Status sent = channel_.Enqueue(reply, answer);
  if (!sent.ok() && !answer.empty()) {  // for the descriptors' sake, maybe
    reply.set_status_code(static_cast<int>(sent.code()));
    reply.set_status_message(std::string(sent.message()));
    sent = channel_.Enqueue(reply);
  }
  BATON_RETURN_IF_ERROR(sent);
  // One request at a time fits in the socket's buffer: what does not fit was not read by design.
  if (channel_.pending()) return absl::ResourceExhaustedError("it does not read its replies");
  return absl::OkStatus();
}

}  // namespace baton
