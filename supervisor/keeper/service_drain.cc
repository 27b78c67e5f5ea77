#include "supervisor/keeper/service_drain.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/replace_file.h"
#include "supervisor/config/state_files.h"

namespace baton::keeper {
namespace {

// Between two looks whether connections are left, and at the deadline.
constexpr std::chrono::milliseconds kLook(50);

}  // namespace

ServiceDrain::ServiceDrain(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                           ServiceEngine& engine, Policies& policies, EventLog& events)
    : config_(config),
      engine_(engine),
      policies_(policies),
      events_(events),
      path_(DrainPath(config.state_dir(), config.service().name())),
      timer_(loop) {
  std::ifstream file(path_);
  if (!file) return;
  v1::Drain drain;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // One that cannot be read drains all the same: somebody wanted it.
  if (!google::protobuf::TextFormat::ParseFromString(text, &drain)) {
    spdlog::warn("{} cannot be read: the service is drained, without a deadline", path_);
    drain.Clear();
    drain.set_started_unix_micros(UnixMicroseconds());
  }
  drain_ = drain;
  AddEvent("drain_started", "goes on: a keeper before this one had begun it");
  Enforce();
}

absl::StatusOr<v1::Drain> ServiceDrain::Begin(const internal::DrainService& request) {
  if (request.disconnect() && request.deadline_ms() == 0) {
    return absl::InvalidArgumentError(
        "disconnect: without deadline_ms there is no time at which to disconnect");
  }
  v1::Drain drain;
  const int64_t now = UnixMicroseconds();
  drain.set_started_unix_micros(drain_ ? drain_->started_unix_micros() : now);
  drain.set_disconnect(request.disconnect());
  if (request.deadline_ms() != 0) {
    drain.set_deadline_unix_micros(now + int64_t{request.deadline_ms()} * 1000);
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(drain, &text);
  BATON_RETURN_IF_ERROR(ReplaceFile(path_, text));
  const bool again = drain_.has_value();
  drain_ = drain;
  deadline_told_ = false;
  AddEvent(again ? "drain_changed" : "drain_started",
           request.deadline_ms() == 0
               ? "new connections are refused; there is no deadline"
               : absl::StrCat("new connections are refused; in ", request.deadline_ms(), " ms ",
                              request.disconnect() ? "what is left is disconnected"
                                                   : "it is told what is left"));
  again ? Look() : Enforce();
  return *Describe();
}

absl::Status ServiceDrain::End() {
  if (!drain_) {
    return absl::FailedPreconditionError(
        absl::StrCat("service \"", config_.service().name(), "\" is not drained"));
  }
  if (unlink(path_.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("unlink ", path_));
  }
  drain_.reset();
  timer_.cancel();
  engine_.Run([this] { policies_.admission().Open(); });
  AddEvent("drain_ended", "new connections are taken again");
  return absl::OkStatus();
}

std::optional<v1::Drain> ServiceDrain::Describe() const {
  if (!drain_) return std::nullopt;
  v1::Drain drain = *drain_;
  engine_.Run([&] {
    drain.set_connections_left(engine_.connection_count());
    drain.set_refused(static_cast<uint32_t>(policies_.admission().refused_closed()));
  });
  return drain;
}

void ServiceDrain::Enforce() {
  empty_told_ = false;
  engine_.Run([this] {
    policies_.admission().Close(
        absl::StrCat("the service is drained and takes no new connections: `baton drain --end ",
                     config_.service().name(), "` ends that"));
  });
  Look();
}

void ServiceDrain::Look() {
  uint32_t left = 0;
  engine_.Run([&] { left = engine_.connection_count(); });
  if (left == 0 && !empty_told_) {
    AddEvent("drained", "no connection is left");
    empty_told_ = true;
  }
  const int64_t deadline = drain_->deadline_unix_micros();
  if (deadline != 0 && !deadline_told_ && UnixMicroseconds() >= deadline) OnDeadline(left);
  if (empty_told_ && (deadline == 0 || deadline_told_)) return;  // nothing can come any more
  timer_.expires_after(kLook);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && drain_) Look();
  });
}

void ServiceDrain::OnDeadline(uint32_t left) {
  deadline_told_ = true;
  if (left == 0) return;
  if (!drain_->disconnect()) {
    return AddEvent("drain_overdue", absl::StrCat(left, " connections are left at the deadline"));
  }
  engine_.Run([&] {
    drain_->set_disconnected(engine_.DisconnectAll("disconnected: its service was drained"));
  });
  AddEvent("drain_disconnected", absl::StrCat(drain_->disconnected(),
                                              " connections were left at the deadline, and are "
                                              "disconnected"));
}

void ServiceDrain::AddEvent(const std::string& kind, const std::string& message) {
  events_.Add(kind, message, UnixMicroseconds(), 0, -1, -1);
}

}  // namespace baton::keeper
