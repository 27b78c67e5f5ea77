#include "supervisor/control/batond_link.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

constexpr std::chrono::seconds kPatience(10);

}  // namespace

BatondLink::BatondLink(boost::asio::io_context& loop, FileDescriptor socket)
    : loop_(loop),
      socket_(socket
                  ? std::make_shared<FramedSocket>(loop, std::move(socket), FramedSocket::Limits())
                  : nullptr) {}

void BatondLink::Start(OnNews on_news) {
  if (!socket_) return;
  boost::asio::post(loop_, [this, on_news = std::move(on_news)]() mutable {
    on_news_ = std::move(on_news);
    socket_->Start([this] { return TakeReply(); },
                   [this](const absl::Status& why) {
                     spdlog::error("batond cannot be asked any more: {}",
                                   std::string(why.message()));
                     End(absl::UnavailableError(
                         absl::StrCat("batond cannot be asked any more: ", why.message(),
                                      "; end baton-control, and batond starts another")));
                   });
  });
}

void BatondLink::Stop() {
  if (socket_) socket_->Close();
  End(absl::UnavailableError("control is stopping: try again in a moment"));
}

absl::StatusOr<BatondLink::Answer> BatondLink::Ask(internal::BatondRequest request) {
  if (!socket_) {
    return absl::FailedPreconditionError(
        "batond has not started this control, and nobody else reads the configuration for it");
  }
  std::future<absl::StatusOr<Answer>> answer;
  uint64_t id = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ended_.ok()) return ended_;
    id = ++last_id_;
    request.set_id(id);
    answer = waiting_[id].get_future();
  }
  boost::asio::post(loop_, [this, request = std::move(request)] {
    const absl::Status sent = socket_->TrySend(request);
    if (!sent.ok()) GiveAnswer(request.id(), sent);
  });
  if (answer.wait_for(kPatience) == std::future_status::ready) return answer.get();
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(id);
  return absl::UnavailableError(
      absl::StrCat("batond has not answered within ", kPatience.count(), " s: see its log"));
}

absl::StatusOr<bool> BatondLink::TakeReply() {
  Answer answer;
  BATON_ASSIGN_OR_RETURN(const bool whole,
                         socket_->channel().NextFrame(&answer.reply, &answer.descriptors));
  if (!whole) return false;
  if (answer.reply.id() == 0) {
    on_news_(answer.reply);
  } else {
    const uint64_t id = answer.reply.id();
    absl::Status status = StatusIn(answer.reply);
    status.ok() ? GiveAnswer(id, std::move(answer)) : GiveAnswer(id, std::move(status));
  }
  return true;
}

void BatondLink::GiveAnswer(uint64_t id, absl::StatusOr<Answer> answer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;  // the caller has given up
  found->second.set_value(std::move(answer));
  waiting_.erase(found);
}

void BatondLink::End(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ended_.ok()) ended_ = why;
  for (auto& [id, promise] : waiting_) promise.set_value(why);
  waiting_.clear();
}

}  // namespace baton
