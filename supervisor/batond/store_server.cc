#include "supervisor/batond/store_server.h"

#include <sys/socket.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/channel/carried_status.h"
#include "spdlog/spdlog.h"

namespace baton {

absl::Status DescriptorStore::Put(const std::string& name,
                                  std::vector<FileDescriptor> descriptors) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a name of ", name.size(), " bytes; 1 to ", kMaxNameBytes, " are possible"));
  }
  if (descriptors.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" came without descriptors; drop removes an entry"));
  }
  if (entries_.count(name) == 0 && entries_.size() >= kMaxNames) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store holds ", kMaxNames, " entries already; drop one first"));
  }
  entries_[name] = std::move(descriptors);
  if (on_change_) on_change_(name, *Get(name));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> DescriptorStore::Get(const std::string& name) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return absl::NotFoundError(absl::StrCat("nothing under ", name));
  std::vector<int> descriptors;
  for (const FileDescriptor& descriptor : entry->second) descriptors.push_back(descriptor.get());
  return descriptors;
}

absl::Status DescriptorStore::Drop(const std::string& name) {
  if (entries_.erase(name) == 0) return absl::NotFoundError(absl::StrCat("nothing under ", name));
  if (on_change_) on_change_(name, {});
  return absl::OkStatus();
}

std::vector<std::string> DescriptorStore::List() const {
  std::vector<std::string> names;
  for (const auto& [name, descriptors] : entries_) names.push_back(name);
  return names;
}

StoreServer::StoreServer(boost::asio::io_context& io, std::string keeper, FileDescriptor socket,
                         DescriptorStore& store)
    : keeper_(std::move(keeper)),
      store_(store),
      session_(std::make_shared<FramedSession>(io, std::move(socket), FramedSession::Limits())) {
  session_->Start([this] { return ServeOne(); },
                  [this](const absl::Status& why) {
                    if (!absl::IsUnavailable(why)) {
                      spdlog::error("{}: its store channel is closed: {}", keeper_, why.ToString());
                    }
                    // The keeper hears of it, which would wait for answers.
                    shutdown(session_->channel().fd(), SHUT_RDWR);
                    session_.reset();
                  });
}

StoreServer::~StoreServer() {
  if (!session_) return;
  // The keeper's last requests can still be read after its end was noticed.
  (void)session_->channel().Fill();
  for (;;) {
    const absl::StatusOr<bool> served = ServeOne();
    if (!served.ok() || !*served) break;
  }
  session_->Close();
}

absl::StatusOr<bool> StoreServer::ServeOne() {
  internal::StoreRequest request;
  std::vector<FileDescriptor> descriptors;
  BATON_ASSIGN_OR_RETURN(const bool whole, session_->channel().NextFrame(&request, &descriptors));
  if (whole) BATON_RETURN_IF_ERROR(Serve(request, std::move(descriptors)));
  return whole;
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
  SetStatus(status, &reply);
  MessageChannel& channel = session_->channel();
  absl::Status sent = channel.Enqueue(reply, answer);
  if (!sent.ok() && !answer.empty()) {  // for the descriptors' sake, maybe
    SetStatus(sent, &reply);
    sent = channel.Enqueue(reply);
  }
  BATON_RETURN_IF_ERROR(sent);
  // One request at a time fits in the socket's buffer: what does not fit was not read by design.
  if (channel.pending()) return absl::ResourceExhaustedError("it does not read its replies");
  return absl::OkStatus();
}

}  // namespace baton
