#include "supervisor/keeper/policy/service_drain.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "proto/baton/internal/driver.pb.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/state_files.h"

namespace baton::keeper {
namespace {

// The time between two looks at the connections that are left, and at the deadline.
constexpr std::chrono::milliseconds kLook(50);

// After so many keepers that ended while they read it, the record is set aside.
constexpr off_t kMostReaders = 3;

// Returns an id that changes with each boot of the machine; empty: it cannot be known.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// Converts a monotonic time with the offset that the wall clock has now.
int64_t UnixMicrosecondsAt(uint64_t monotonic_ns) {
  return UnixMicroseconds() + static_cast<int64_t>(monotonic_ns - MonotonicNanoseconds()) / 1000;
}

// Returns the monotonic time of a record's deadline. If the machine has booted since, only the wall
// clock says how much time is left.
uint64_t DeadlineOf(const internal::DrainRecord& record) {
  if (record.deadline_unix_micros() == 0) return 0;
  if (!record.boot_id().empty() && record.boot_id() == BootId()) {
    return record.deadline_monotonic_ns();
  }
  const int64_t left = std::max<int64_t>(0, record.deadline_unix_micros() - UnixMicroseconds());
  return MonotonicNanoseconds() + static_cast<uint64_t>(left) * 1000;
}

}  // namespace

ServiceDrain::ServiceDrain(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                           DriverClient& driver, EventLog& events)
    : config_(config),
      driver_(driver),
      events_(events),
      path_(DrainPath(config.state_dir(), config.service().name())),
      readers_path_(DrainReadersPath(config.state_dir(), config.service().name())),
      timer_(loop) {
  ReadRecord();
  (void)unlink(readers_path_.c_str());
  if (!drain_) {
    // A keeper before this one may have died while it ended a drain.
    driver_.OpenAdmission();
    return;
  }
  events_.Add("drain_started", "goes on: a keeper before this one had begun it");
  Enforce();
}

void ServiceDrain::ReadRecord() {
  if (access(path_.c_str(), F_OK) != 0 && errno == ENOENT) return;
  if (CountReader() >= kMostReaders) return SetRecordAside();
  std::ifstream file(path_);
  internal::DrainRecord record;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // A record that cannot be read drains the service all the same, because somebody asked for a
  // drain.
  if (!file || !google::protobuf::TextFormat::ParseFromString(text, &record)) {
    spdlog::warn("{} cannot be read: the service is drained, without a deadline", path_);
    record.Clear();
    record.set_started_unix_micros(UnixMicroseconds());
  }
  drain_.emplace();
  drain_->set_started_unix_micros(record.started_unix_micros());
  drain_->set_disconnect(record.disconnect());
  deadline_ns_ = DeadlineOf(record);
}

// Counts in a file, because a driver's first keeper ends its driver when it dies.
off_t ServiceDrain::CountReader() const {
  const FileDescriptor file(
      open(readers_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat before = {};
  if (!file || fstat(file.get(), &before) != 0) return 0;
  (void)!write(file.get(), "r", 1);
  return before.st_size;
}

void ServiceDrain::SetRecordAside() {
  const std::string aside = DrainSetAsidePath(config_.state_dir(), config_.service().name());
  if (rename(path_.c_str(), aside.c_str()) != 0) {
    spdlog::error("{}", MessageOf(ErrnoStatus(errno, absl::StrCat("rename ", path_))));
  }
  events_.Add("keeper_entry_set_aside",
              absl::StrCat(kMostReaders, " keepers in a row ended while they read ", path_,
                           ": it is set aside, and the service is not drained. Keep ", aside,
                           " and the core files, and drain the service again"));
}

absl::Status ServiceDrain::WriteRecord(const v1::Drain& drain, uint64_t deadline_ns) const {
  internal::DrainRecord record;
  record.set_started_unix_micros(drain.started_unix_micros());
  record.set_disconnect(drain.disconnect());
  if (deadline_ns != 0) {
    record.set_deadline_unix_micros(UnixMicrosecondsAt(deadline_ns));
    record.set_deadline_monotonic_ns(deadline_ns);
    record.set_boot_id(BootId());
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(record, &text);
  return ReplaceFile(path_, text);
}

absl::StatusOr<v1::Drain> ServiceDrain::Begin(const internal::DrainService& request) {
  if (request.disconnect() && request.deadline_ms() == 0) {
    return absl::InvalidArgumentError(
        "disconnect: without deadline_ms there is no time at which to disconnect");
  }
  v1::Drain drain;
  drain.set_started_unix_micros(drain_ ? drain_->started_unix_micros() : UnixMicroseconds());
  drain.set_disconnect(request.disconnect());
  if (drain_) drain.set_disconnected(drain_->disconnected());
  const uint64_t deadline_ns =
      request.deadline_ms() == 0
          ? 0
          : MonotonicNanoseconds() + uint64_t{request.deadline_ms()} * 1'000'000;
  BATON_RETURN_IF_ERROR(WriteRecord(drain, deadline_ns));
  const bool again = drain_.has_value();
  drain_ = drain;
  deadline_ns_ = deadline_ns;
  deadline_told_ = false;
  events_.Add(again ? "drain_changed" : "drain_started",
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
  driver_.OpenAdmission();
  events_.Add("drain_ended", "new connections are taken again");
  return absl::OkStatus();
}

std::optional<v1::Drain> ServiceDrain::Describe() const {
  if (!drain_) return std::nullopt;
  v1::Drain drain = *drain_;
  if (deadline_ns_ != 0) drain.set_deadline_unix_micros(UnixMicrosecondsAt(deadline_ns_));
  const DriverClient::Counted counted = driver_.CountConnections();
  drain.set_connections_left(static_cast<uint32_t>(counted.connections));
  drain.set_refused(static_cast<uint32_t>(counted.refused));
  return drain;
}

void ServiceDrain::Enforce() {
  empty_told_ = false;
  driver_.CloseAdmission(
      absl::StrCat("the service is drained and takes no new connections: `baton drain --end ",
                   config_.service().name(), "` ends that"));
  Look();
}

void ServiceDrain::Look() {
  const auto left = static_cast<uint32_t>(driver_.CountConnections().connections);
  if (left == 0 && !empty_told_) {
    events_.Add("drained", "no connection is left");
    empty_told_ = true;
  }
  const bool over = deadline_ns_ != 0 && MonotonicNanoseconds() >= deadline_ns_;
  if (over && !deadline_told_) OnDeadline(left);
  if (empty_told_ && (deadline_ns_ == 0 || deadline_told_)) return;  // nothing is left to be seen
  After(timer_, kLook, [this] {
    if (drain_) Look();
  });
}

void ServiceDrain::OnDeadline(uint32_t left) {
  deadline_told_ = true;
  if (left == 0) return;
  if (!drain_->disconnect()) {
    return events_.Add("drain_overdue",
                       absl::StrCat(left, " connections are left at the deadline"));
  }
  drain_->set_disconnected(
      static_cast<uint32_t>(driver_.DisconnectAll("disconnected: its service was drained")));
  events_.Add("drain_disconnected", absl::StrCat(drain_->disconnected(),
                                                 " connections were left at the deadline, and are "
                                                 "disconnected"));
}

}  // namespace baton::keeper
