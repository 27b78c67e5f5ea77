#include "supervisor/control/batond_link.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/heartbeat.h"
#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "lib/channel/waits.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

constexpr std::chrono::seconds kPatience(10);

// Returns whether a batond of a former release has begun. It waits for this control's end, and
// cannot take it in.
bool FormerReleaseWaits(const std::string& state_dir) {
  struct stat lock = {};
  return stat(BatondLockPath(state_dir).c_str(), &lock) == 0 &&
         lock.st_size < static_cast<off_t>(kPaddedLockBytes);
}

}  // namespace

BatondLink::BatondLink(boost::asio::io_context& loop, FileDescriptor socket, Rejoin rejoin,
                       pid_t batond)
    : loop_(loop),
      has_batond_(static_cast<bool>(socket)),
      rejoin_(std::move(rejoin)),
      look_timer_(loop),
      batond_(batond) {
  if (!socket) return;
  if (rejoin_.lock) {
    next_.emplace(ControlRejoinSocketPath(rejoin_.state_dir), rejoin_.lock.get(),
                  std::move(rejoin_.stay));
  }
  socket_ = std::make_shared<FramedSocket>(loop, std::move(socket), FramedSocket::Limits());
}

void BatondLink::Start(OnNews on_news) {
  if (!has_batond_) return;
  boost::asio::post(loop_, [this, on_news = std::move(on_news)]() mutable {
    on_news_ = std::move(on_news);
    Talk();
  });
}

void BatondLink::Talk() {
  socket_->Start([this] { return TakeReply(); },
                 [this](const absl::Status& why) { OnClosed(why); });
}

void BatondLink::OnClosed(const absl::Status& why) {
  socket_.reset();
  batond_ = 0;
  if (next_) {
    spdlog::warn("batond is gone: control goes on, and waits for the next batond");
    End(absl::UnavailableError(
        "batond is gone, and the next one has not come yet: try again in a moment"));
    return LookForBatond();
  }
  spdlog::error("batond cannot be asked any more: {}", std::string(why.message()));
  End(absl::UnavailableError(absl::StrCat("batond cannot be asked any more: ", why.message(),
                                          "; end baton-control, and batond starts another")));
}

void BatondLink::LookForBatond() {
  if (WillBeAlone()) {
    // The main thread waits for the signal. Control's sandbox allows no kill(2).
    (void)syscall(SYS_tgkill, getpid(), getpid(), SIGTERM);
    return;
  }
  absl::StatusOr<std::optional<NextBatond::Welcome>> found = next_->Look(rejoin_.request);
  if (!found.ok()) {
    spdlog::warn("the next batond does not take control in: {}", MessageOf(found.status()));
  } else if (*found) {
    SetHeart((*found)->heart.Release());
    ShowLife();
    socket_ =
        std::make_shared<FramedSocket>(loop_, std::move((*found)->channel), FramedSocket::Limits());
    batond_ = (*found)->batond;
    ++followed_;
    spdlog::info("another batond has taken control in");
    End(absl::OkStatus());
    return Talk();
  }
  After(look_timer_, NextBatond::kLookInterval, [this] { LookForBatond(); });
}

bool BatondLink::WillBeAlone() const {
  absl::Status may_come = next_->CheckOneMayCome();
  if (may_come.ok() && FormerReleaseWaits(rejoin_.state_dir)) {
    may_come = absl::CancelledError("the next batond is of a former release, and starts another");
  }
  if (may_come.ok()) return false;
  spdlog::info("{}: control ends", MessageOf(may_come));
  return true;
}

void BatondLink::Stop() {
  if (socket_) socket_->Close();
  End(absl::UnavailableError("control is stopping: try again in a moment"));
}

absl::StatusOr<BatondLink::Answer> BatondLink::Ask(internal::BatondRequest request) {
  if (!has_batond_) {
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
  boost::asio::post(loop_, [this, request = std::move(request)] { Send(request); });
  if (answer.wait_for(kPatience) == std::future_status::ready) return answer.get();
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(id);
  return absl::UnavailableError(
      absl::StrCat("batond has not answered within ", kPatience.count(), " s: see its log"));
}

// A request that has failed because its batond is gone is not sent to the next one.
void BatondLink::Send(const internal::BatondRequest& request) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.count(request.id()) == 0) return;
  }
  const absl::Status sent = socket_->TrySend(request);
  if (!sent.ok()) GiveAnswer(request.id(), sent);
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
  ended_ = why;
  for (auto& [id, promise] : waiting_) promise.set_value(why);
  waiting_.clear();
}

}  // namespace baton
