#include "supervisor/control/batond_link.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

constexpr std::chrono::seconds kPatience(10);

}  // namespace

BatondLink::BatondLink(FileDescriptor socket)
    : connected_(static_cast<bool>(socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      channel_(std::move(socket)) {
  BATON_CHECK(wake_);
}

void BatondLink::Start(OnNews on_news) {
  on_news_ = std::move(on_news);
  if (connected_) thread_ = std::thread([this] { Run(); });
}

void BatondLink::Stop() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

absl::StatusOr<BatondLink::Answer> BatondLink::Ask(internal::BatondRequest request) {
  if (!connected_) {
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
    if (const absl::Status sent = channel_.Enqueue(request); !sent.ok()) return sent;
    answer = waiting_[id].get_future();
  }
  if (answer.wait_for(kPatience) == std::future_status::ready) return answer.get();
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(id);
  return absl::UnavailableError(
      absl::StrCat("batond has not answered within ", kPatience.count(), " s: see its log"));
}

void BatondLink::Run() {
  for (;;) {
    bool pending = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      pending = channel_.pending();
    }
    const auto events = static_cast<short>(pending ? POLLIN | POLLOUT : POLLIN);
    pollfd entries[2] = {{wake_.get(), POLLIN, 0}, {channel_.fd(), events, 0}};
    if (poll(entries, 2, -1) < 0) continue;
    absl::Status end;
    std::vector<internal::BatondReply> news;
    if (entries[0].revents != 0) {
      end = absl::UnavailableError("control is stopping: try again in a moment");
    } else {
      end = Read(&news);
    }
    for (const internal::BatondReply& one : news) on_news_(one);
    if (end.ok()) continue;
    std::map<uint64_t, std::promise<absl::StatusOr<Answer>>> failed;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = end;
      failed.swap(waiting_);
    }
    for (auto& [id, promise] : failed) promise.set_value(end);
    return;
  }
}

absl::Status BatondLink::Read(std::vector<internal::BatondReply>* news) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (channel_.pending()) (void)channel_.Flush();  // should it fail, Fill tells why
  absl::Status end = channel_.Fill();
  for (;;) {
    Answer answer;
    const absl::StatusOr<bool> whole = channel_.NextFrame(&answer.reply, &answer.descriptors);
    if (!whole.ok()) end = whole.status();
    if (!whole.ok() || !*whole) break;
    if (answer.reply.id() == 0) {
      news->push_back(std::move(answer.reply));
      continue;
    }
    const auto found = waiting_.find(answer.reply.id());
    if (found == waiting_.end()) continue;  // who asked has given up
    const auto code = static_cast<absl::StatusCode>(answer.reply.status_code());
    if (code == absl::StatusCode::kOk) {
      found->second.set_value(std::move(answer));
    } else {
      found->second.set_value(absl::Status(code, answer.reply.status_message()));
    }
    waiting_.erase(found);
  }
  if (end.ok()) return end;
  spdlog::error("batond cannot be asked any more: {}", std::string(end.message()));
  return absl::UnavailableError(absl::StrCat("batond cannot be asked any more: ", end.message(),
                                             "; end baton-control, and "
                                             "batond starts another"));
}

}  // namespace baton
