#include "supervisor/control/audit_trail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "lib/base/status.h"
#include "lib/log/log.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/audit_chain.h"

namespace baton {
namespace {

constexpr char kKind[] = "change";
constexpr int64_t kTieMicros = 1000;  // a clock shows the same time for less than this

std::string MessageFor(const v1::Change& change) {
  return absl::StrCat(change.number(), ": ", change.what(), " asked by ", change.who(),
                      change.why().empty() ? "" : absl::StrCat(" (", change.why(), ")"), ": ",
                      change.done() ? change.outcome() : "begins");
}

}  // namespace

AuditTrail::AuditTrail(std::string path, EventLog* events, uint64_t max_file_bytes,
                       std::function<int64_t()> unix_micros)
    : path_(std::move(path)),
      events_(events),
      max_file_bytes_(max_file_bytes),
      unix_micros_(std::move(unix_micros)) {
  ReadFile(path_ + ".1");
  ReadFile(path_);
  Open();
}

// Skips incomplete lines, such as the last one if a former control was killed while it wrote.
void AuditTrail::ReadFile(const std::string& path) {
  std::ifstream file(path);
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // the hash, and fields of later releases
  for (std::string line; std::getline(file, line);) {
    v1::Event event;
    if (!google::protobuf::util::JsonStringToMessage(line, &event, options).ok() ||
        event.kind() != kKind) {
      continue;
    }
    const std::string_view hash = AuditHashOf(line);
    if (!hash.empty()) last_hash_ = std::string(hash);
    last_number_ = std::max(last_number_, event.change().number());
    events_->Append(event.service(), event);
  }
}

void AuditTrail::Open() {
  file_.Reset(open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  struct stat status = {};
  if (!file_ || fstat(file_.get(), &status) != 0) {
    spdlog::error("what operators do is not on record: {}",
                  MessageOf(ErrnoStatus(errno, absl::StrCat("open ", path_))));
    return;
  }
  bytes_ = static_cast<uint64_t>(status.st_size);
  char last = '\n';
  if (bytes_ > 0 && pread(file_.get(), &last, 1, status.st_size - 1) == 1 && last != '\n') {
    (void)Write("");  // ends the line in which a former control was killed
  }
}

uint64_t AuditTrail::Begin(const std::string& service, v1::Change* change) {
  std::lock_guard<std::mutex> lock(mutex_);
  change->set_number(++last_number_);
  return Record(service, *change).bytes;
}

uint64_t AuditTrail::End(const std::string& service, v1::Change change,
                         const absl::Status& outcome) {
  change.set_done(true);
  change.set_outcome(outcome.ok() ? "OK" : outcome.ToString());
  Recorded recorded;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    recorded = Record(service, change);
  }
  log::Write(
      spdlog::level::info, {.service = service, .trace_parent = change.trace_parent()},
      absl::StrCat("service ", service, ": ", MessageFor(change),
                   recorded.hash.empty() ? "" : absl::StrCat(" [record ", recorded.hash, "]")));
  return recorded.bytes;
}

AuditTrail::Recorded AuditTrail::Record(const std::string& service, const v1::Change& change) {
  // Readers tell records apart by their times. A clock that was stepped back is taken as it is.
  int64_t now = unix_micros_();
  if (now <= last_unix_micros_ && now > last_unix_micros_ - kTieMicros) now = last_unix_micros_ + 1;
  last_unix_micros_ = now;
  v1::Event event;
  event.set_service(service);
  event.set_unix_micros(now);
  event.set_kind(kKind);
  event.set_message(MessageFor(change));
  event.set_shard(-1);
  event.set_connection(-1);
  *event.mutable_change() = change;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(event, &json, options);
  AuditLine line = ChainAuditLine(json, last_hash_);
  const bool written = Write(line.text);
  if (written) {
    last_hash_ = line.hash;
  } else {
    failed_writes_.fetch_add(1, std::memory_order_relaxed);
  }
  events_->Append(service, event);
  Recorded recorded;
  recorded.bytes = line.text.size() + 1;
  if (written) recorded.hash = std::move(line.hash);
  return recorded;
}

// Renames each file to its next age. The oldest one is overwritten.
void AuditTrail::MoveFiles() {
  for (int age = kAuditFiles - 1; age > 0; --age) {
    const std::string from = AuditFile(path_, age - 1);
    if (std::rename(from.c_str(), AuditFile(path_, age).c_str()) == 0 || errno == ENOENT) continue;
    spdlog::error("{}", MessageOf(ErrnoStatus(errno, absl::StrCat("rename ", from))));
  }
}

bool AuditTrail::Write(const std::string& line) {
  if (!file_) Open();  // it may be possible by now
  if (!file_) return false;
  if (bytes_ + line.size() >= max_file_bytes_) {
    MoveFiles();
    Open();
    if (!file_) return false;
  }
  const std::string whole = line + "\n";
  const ssize_t written = write(file_.get(), whole.data(), whole.size());
  if (written == static_cast<ssize_t>(whole.size()) && fdatasync(file_.get()) == 0) {
    bytes_ += static_cast<uint64_t>(written);
    return true;
  }
  const absl::Status why =
      ErrnoStatus(written >= 0 ? ENOSPC : errno, absl::StrCat("write ", path_));
  spdlog::error("what operators do is not on record: {}", MessageOf(why));
  // A partial line would spoil the next one.
  if (ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) file_.Reset();
  return false;
}

}  // namespace baton
